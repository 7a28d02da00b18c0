/* Holds a switch's delayed and reordered frames until they are due: the process behind
 * testbed/faults/delay_line.py.
 *
 *	delay_line PACKETS MEMORY LINKS WAKEUPS FLOODING
 *
 * Descriptors: a packet socket on `delay1`, the memory of struct delay_line, the map `links` and
 * the ring buffer `wakeups` (-1: none, and no frame waits for another), the map `flooding` (-1:
 * none, and the switch never floods). Incoming frames begin with the header of
 * bpf/shared/delay_header_abi.h. A byte on stdout signals that the process is ready; the process
 * exits at the end of stdin.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "delay_store.h"
#include "delay_wakeups.h"

#define BATCH 64

static int packets; /* the socket, for both directions: each message sent names its port */
static struct wakeups wakeups;
/* not 0: the switch has lost its table; NULL: it never does */
static const volatile uint64_t *flooding;

/* Read at most a batch of frames; returns whether there may be more. */
static bool receive(void)
{
	static struct delay_header surplus;
	struct mmsghdr messages[BATCH] = {};
	struct iovec vectors[BATCH];
	uint32_t taken[BATCH], room = MIN(spares, BATCH);
	uint64_t now;
	int count;

	for (uint32_t i = 0; i < room; i++) {
		taken[i] = spare[spares - 1 - i];
		vectors[i] = (struct iovec){ header_of(taken[i]), line->room };
	}
	if (!room)
		vectors[0] = (struct iovec){ &surplus, sizeof(surplus) };
	for (uint32_t i = 0; i < MAX(room, 1); i++)
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &vectors[i], .msg_iovlen = 1 };
	count = recvmmsg(packets, messages, MAX(room, 1), MSG_DONTWAIT | MSG_TRUNC, NULL);
	if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
		err(1, "recvmmsg");
	if (count <= 0)
		return false;
	if (!room) {
		refuse(&surplus, messages[0].msg_len);
		return true;
	}
	spares -= count;
	now = now_ns();
	for (int i = 0; i < count; i++)
		if (!keep(taken[i], messages[i].msg_len, now))
			spare[spares++] = taken[i];
	if (waits)
		release(now); /* the frames that they wait for may already have passed */
	return count == (int)room;
}

/* On a switch that floods, the frame also leaves through all other ports. Only the copy through its
 * own port is counted. */
static void send_to_others(const struct delay_header *header, uint32_t length)
{
	for (int i = 0; i < SWITCH_MAX_PORTS && line->port[i]; i++) {
		struct sockaddr_ll port = { .sll_family = AF_PACKET, .sll_ifindex = line->port[i] };

		if (line->port[i] != header->ifindex && line->port[i] != header->ingress)
			sendto(packets, header + 1, length, MSG_DONTWAIT, (struct sockaddr *)&port,
			       sizeof(port));
	}
}

/* Send at most a batch of the frames that are due. */
static void send_due(uint64_t now)
{
	struct mmsghdr messages[BATCH] = {};
	struct sockaddr_ll ports[BATCH];
	struct iovec vectors[BATCH];
	struct heap_entry entries[BATCH];
	bool last[BATCH];
	int count = 0;

	for (; count < BATCH && heap.size && heap.entries[0].when <= now; count++) {
		struct heap_entry entry = heap.entries[0];
		struct delay_header *header = header_of(entry.frame);

		vectors[count] = (struct iovec){ header + 1, frames[entry.frame].length };
		ports[count] = (struct sockaddr_ll){ .sll_family = AF_PACKET,
						     .sll_ifindex = header->ifindex };
		messages[count].msg_hdr = (struct msghdr){ .msg_name = &ports[count],
							   .msg_namelen = sizeof(ports[count]),
							   .msg_iov = &vectors[count],
							   .msg_iovlen = 1 };
		entries[count] = entry;
		last[count] = take(entry);
	}
	for (int done = 0; done < count;) {
		int sent = sendmmsg(packets, messages + done, count - done, MSG_DONTWAIT);

		now = now_ns();
		if (sent < 0) { /* the first one: its port is down or gone, or its queue is full */
			line->refused++;
			done++;
		} else {
			for (int end = done + sent; done < end; done++)
				delay_line_sent(line, now - entries[done].when);
		}
	}
	for (int i = 0; flooding && *flooding && i < count; i++)
		send_to_others(header_of(entries[i].frame), frames[entries[i].frame].length);
	for (int i = 0; i < count; i++)
		if (last[i])
			spare[spares++] = entries[i].frame;
}

static void run(void)
{
	struct pollfd events[] = {
		{ .fd = STDIN_FILENO }, /* only its hang-up matters */
		{ .fd = packets, .events = POLLIN },
		{ .fd = wakeups.fd, .events = POLLIN }, /* ppoll ignores negative ones */
	};

	while (!events[0].revents) {
		struct timespec timeout = {};
		uint64_t now;

		if (events[2].revents) {
			wakeups_drain(&wakeups);
			release(now_ns());
		}
		if (events[1].revents)
			receive();
		now = now_ns();
		send_due(now);
		if (heap.size && heap.entries[0].when > now) {
			timeout.tv_sec = (heap.entries[0].when - now) / 1000000000;
			timeout.tv_nsec = (heap.entries[0].when - now) % 1000000000;
		}
		if (ppoll(events, 3, heap.size ? &timeout : NULL, NULL) < 0)
			err(1, "ppoll");
	}
	while (receive()) /* frames that have arrived but were not read */
		;
	store_close();
}

/* For punctuality only: without this permission, frames leave later and are counted as late. */
static void hurry(void)
{
	struct sched_param priority = { .sched_priority = 1 };

	line->realtime = !sched_setscheduler(0, SCHED_FIFO, &priority);
	prctl(PR_SET_TIMERSLACK, 1);
	mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
}

int main(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 6)
		errx(2, "usage: delay_line PACKETS MEMORY LINKS WAKEUPS FLOODING (descriptors)");
	packets = atoi(argv[1]);
	line = map(sizeof(*line), atoi(argv[2]), PROT_READ | PROT_WRITE, 0);
	store_open(atoi(argv[3]));
	wakeups = wakeups_open(atoi(argv[4]), line->wakeups);
	if (atoi(argv[5]) >= 0)
		flooding = map(sizeof(*flooding), atoi(argv[5]), PROT_READ, 0);
	hurry();
	if (write(STDOUT_FILENO, "+", 1) != 1)
		err(1, "stdout");
	run();
	return 0;
}
