/* The process's side of an exchange: its system calls, and the memory that it shares with the kernel (bpf/include/pinch.h). */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "pinch_numbers.h"

/* struct pinch_control of bpf/include/pinch.h */
struct control {
	uint64_t progress;
	uint32_t tag, window, copies, quench_us, ordered, lowest, highest, pad0[7];
	uint64_t met;
	uint32_t unfit, pad2, acked, received, owed, taken, queued, served, rtt_samples, rtt_max_us;
	uint64_t rtt_sum_us;
	uint32_t pad1[2];
};

/* One rank's end: its maps, its doorbell, and how time is spent. */
struct pinch {
	struct pinch_format format;
	struct control *control;
	char *payloads;
	struct frame *frames;
	const char *bells; /* one a flow */
	uint64_t *consumer;
	const uint64_t *producer;
	uint32_t bell_count, bell_length;
	int32_t doorbell, events;
	uint64_t quantize_ns, send_ns, wait_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Ring for every flow, by one system call. Returns 0 or an errno. */
int pinch_ring(struct pinch *p)
{
	struct mmsghdr messages[p->bell_count];
	struct iovec parts[p->bell_count];

	memset(messages, 0, sizeof(messages));
	for (uint32_t i = 0; i < p->bell_count; i++) {
		parts[i] = (struct iovec){ (char *)p->bells + (size_t)i * p->bell_length, p->bell_length };
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &parts[i], .msg_iovlen = 1 };
	}
	return sendmmsg(p->doorbell, messages, p->bell_count, 0) < 0 ? errno : 0;
}

/* Fill all frames of `bundles` bundles and have them sent. Returns 0 or an errno. */
int pinch_send(struct pinch *p, const float *x, const int32_t *order, const int64_t *starts, uint32_t bundles, double factor, int32_t *last)
{
	uint32_t frames = bundles * p->format.parts;
	uint64_t began = now_ns(), filled;
	int error;

	pinch_fill(&p->format, x, order, starts, 0, frames, p->payloads, p->frames, factor, last);
	filled = now_ns();
	__atomic_store_n(&p->control->progress, (p->control->progress >> 32 << 32) | frames, __ATOMIC_SEQ_CST);
	error = frames ? pinch_ring(p) : 0;
	p->quantize_ns += filled - began;
	p->send_ns += now_ns() - filled;
	return error;
}

/* Whether all has come, been added, and been acknowledged. */
bool pinch_done(const struct pinch *p)
{
	const volatile struct control *c = p->control;

	return c->met >> 32 == c->progress >> 32 && c->received == (uint32_t)c->met && !c->owed && c->acked == c->copies;
}

/* Whether all ranks have come, and what was made to be sent does not hold. */
static bool is_unfit(const struct pinch *p)
{
	const volatile struct control *c = p->control;

	return c->unfit == c->progress >> 32 && c->met >> 32 != c->progress >> 32;
}

/* Sleep until an exchange is complete (1), cannot be (2), or time is up (0); negative: errno. */
int pinch_wait(struct pinch *p, int64_t timeout_ns)
{
	struct pollfd events = { .fd = p->events, .events = POLLIN };
	uint64_t began = now_ns(), end = began + timeout_ns;
	int result = 0;

	while (!pinch_done(p) && !is_unfit(p)) {
		int64_t left = (int64_t)(end - now_ns());
		struct timespec pause = { left / 1000000000, left % 1000000000 };

		if (left <= 0)
			break;
		if (ppoll(&events, 1, &pause, NULL) < 0 && errno != EINTR) {
			result = -errno;
			break;
		}
		__atomic_store_n(p->consumer, __atomic_load_n(p->producer, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
	}
	p->wait_ns += now_ns() - began;
	return result ? result : pinch_done(p) ? 1 : is_unfit(p) ? 2 : 0;
}
