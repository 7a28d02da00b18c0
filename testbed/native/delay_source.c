/* Traffic for a delay line without the fault programs, for testbed/bench/delay_line.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "shared/delay_header_abi.h"

#define BATCH 32 /* a veth's ring holds 256 */
#define LARGEST 2048

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014). */
static __u64 mix(__u64 z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

/* Send `count` frames into a packet socket bound to `delay0`, one every `interval` ns (several at
 * once when it is behind), each due `delay` ± `jitter` ns after it was sent. `frame` is struct
 * delay_header for one copy and the frame itself, `size` bytes in all. Returns the number of frames
 * sent, or a negative errno.
 */
long delay_source(int fd, const void *frame, unsigned long size, long count, __u64 interval,
		  __u64 delay, __u64 jitter)
{
	static __thread char buffers[BATCH][LARGEST];
	struct mmsghdr messages[BATCH] = {};
	struct iovec vectors[BATCH];
	__u64 start = now_ns();
	long sent = 0;

	if (size > LARGEST || size <= sizeof(struct delay_header))
		return -EMSGSIZE;
	for (int i = 0; i < BATCH; i++) {
		memcpy(buffers[i], frame, size);
		vectors[i] = (struct iovec){ buffers[i], size };
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &vectors[i], .msg_iovlen = 1 };
	}
	while (sent < count) {
		__u64 now = now_ns(), next = start + sent * interval;
		struct timespec until = { next / 1000000000, next % 1000000000 };
		int batch = 0, done;

		if (now < next) {
			clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
			continue;
		}
		for (; batch < BATCH && sent + batch < count &&
		       start + (sent + batch) * interval <= now;
		     batch++) {
			struct delay_header *header = (struct delay_header *)buffers[batch];

			header->due[0] = now + delay - jitter +
					 (jitter ? mix(sent + batch) % (2 * jitter) : 0);
		}
		done = sendmmsg(fd, messages, batch, 0);
		if (done < 0)
			return -errno;
		sent += done;
	}
	return sent;
}
