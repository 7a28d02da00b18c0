/* Holds a switch's delayed and reordered frames until they are due: the process behind testbed/faults/delay_line.py.
 *
 *	delay_line PACKETS MEMORY LINKS WAKEUPS
 *
 * Descriptors: a packet socket on `hold1`, the memory of struct delay_line, the map `links` and the ring buffer `wakeups` (-1: none,
 * and no frame waits for another). What comes in begins as bpf/include/held.h says. A byte on stdout tells that all is set up; the end
 * of stdin is the end of the process, too.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../bpf/include/held.h"
#include "delay_heap.h"
#include "delay_line.h"

#define BATCH 64
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

struct frame {
	uint32_t length;  /* behind struct held */
	uint32_t waiting; /* 1 + index in `waiting`; 0: it waits for no other frame */
	uint32_t next;	  /* the copy that leaves next */
};

static struct delay_line *line;
static struct heap heap;
static struct frame *frames;
static char *memory; /* `room` bytes a frame */
static uint32_t *spare, spares; /* frames that are free; the last to come is the next to go: its memory is in the cache */
static uint32_t *waiting, waits;
static char *links;
static int packets; /* the socket, for both ways: each message that is sent names its port */
static struct {
	int fd;
	unsigned long *consumer, *producer;
	char *data;
} wakeups;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void *map(size_t size, int fd, int protection, off_t offset)
{
	void *address = mmap(NULL, size, protection, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, offset);

	if (address == MAP_FAILED)
		err(1, "mmap of %zu bytes", size);
	return address;
}

static struct held *held_of(uint32_t frame)
{
	return (struct held *)(memory + frame * line->room);
}

static struct held_link *link_of(const struct held *held)
{
	return (struct held_link *)(links + held->link * line->link_stride);
}

/* It waits for other frames no longer. */
static void stop_waiting(uint32_t frame)
{
	uint32_t last = waiting[--waits];

	__atomic_fetch_sub(&link_of(held_of(frame))->holding, 1, __ATOMIC_RELAXED);
	waiting[frames[frame].waiting - 1] = last;
	frames[last].waiting = frames[frame].waiting;
	frames[frame].waiting = 0;
}

static bool released(const struct held *held)
{
	return __atomic_load_n(&link_of(held)->passed, __ATOMIC_ACQUIRE) >= held->release;
}

/* Let go of the frames whose link has moved on far enough. */
static void release(uint64_t now)
{
	for (uint32_t i = waits; i--;) { /* downwards: the last one takes the place of one that goes */
		uint32_t frame = waiting[i];
		const struct held *held = held_of(frame);

		if (released(held)) {
			stop_waiting(frame);
			heap_move(&heap, frame, MAX(held->due[0], now));
		}
	}
}

/* Take the records out of the ring buffer (Documentation/bpf/ringbuf.rst); what they say, `links` says better. */
static void drain_wakeups(void)
{
	unsigned long consumer = *wakeups.consumer;

	while (consumer < __atomic_load_n(wakeups.producer, __ATOMIC_ACQUIRE)) {
		uint32_t *header = (uint32_t *)(wakeups.data + (consumer & (line->wakeups - 1)));
		uint32_t length = __atomic_load_n(header, __ATOMIC_ACQUIRE);

		if (length & BPF_RINGBUF_BUSY_BIT)
			break;
		length &= ~BPF_RINGBUF_DISCARD_BIT;
		consumer += (length + BPF_RINGBUF_HDR_SZ + 7) & ~7u;
		__atomic_store_n(wakeups.consumer, consumer, __ATOMIC_RELEASE);
	}
}

static bool valid(const struct held *held, uint32_t size)
{
	return size > sizeof(*held) && size <= line->room && held->copies && held->copies <= HELD_COPIES &&
	       (!held->release || (links && held->link < line->links));
}

/* Keep one that has been read, of `size` bytes in all; returns whether its memory is taken. */
static bool keep(uint32_t frame, uint32_t size, uint64_t now)
{
	struct held *held = held_of(frame);

	line->received++;
	if (!valid(held, size)) {
		line->invalid++;
		return false;
	}
	for (int i = 1; i < held->copies; i++) { /* insertion sort: first come, first due */
		uint64_t due = held->due[i];
		int j = i;

		for (; j && held->due[j - 1] > due; j--)
			held->due[j] = held->due[j - 1];
		held->due[j] = due;
	}
	frames[frame] = (struct frame){.length = size - sizeof(*held)};
	if (held->release) {
		waiting[waits++] = frame;
		frames[frame].waiting = waits;
		heap_push(&heap, frame, MAX(held->due[0], held->latest));
	} else {
		heap_push(&heap, frame, held->due[0] ? held->due[0] : now); /* a time that is over, too: it is late, then */
	}
	return true;
}

/* A frame for which there is no memory: its header tells what is lost. */
static void refuse(const struct held *held, uint32_t size)
{
	line->received++;
	if (!valid(held, size)) {
		line->invalid++;
		return;
	}
	line->full += held->copies;
	if (held->release)
		__atomic_fetch_sub(&link_of(held)->holding, 1, __ATOMIC_RELAXED);
}

/* Read what has come, at most a batch. */
static void receive(void)
{
	static struct held surplus;
	struct mmsghdr messages[BATCH] = {};
	struct iovec vectors[BATCH];
	uint32_t taken[BATCH], room = MIN(spares, BATCH);
	uint64_t now;
	int count;

	for (uint32_t i = 0; i < room; i++) {
		taken[i] = spare[spares - 1 - i];
		vectors[i] = (struct iovec){held_of(taken[i]), line->room};
	}
	if (!room)
		vectors[0] = (struct iovec){&surplus, sizeof(surplus)};
	for (uint32_t i = 0; i < MAX(room, 1); i++)
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &vectors[i], .msg_iovlen = 1};
	count = recvmmsg(packets, messages, MAX(room, 1), MSG_DONTWAIT | MSG_TRUNC, NULL);
	if (count < 0 && errno != EAGAIN && errno != EINTR && errno != ENETDOWN)
		err(1, "recvmmsg");
	if (count <= 0)
		return;
	if (!room) {
		refuse(&surplus, messages[0].msg_len);
		return;
	}
	spares -= count;
	now = now_ns();
	for (int i = 0; i < count; i++)
		if (!keep(taken[i], messages[i].msg_len, now))
			spare[spares++] = taken[i];
	if (waits)
		release(now); /* what they wait for may have passed while they came here */
}

/* Take the copy that leaves next off the heap; returns whether it was its frame's last. */
static bool take(struct heap_entry entry)
{
	struct frame *frame = &frames[entry.frame];
	const struct held *held = held_of(entry.frame);

	if (frame->waiting)
		stop_waiting(entry.frame);
	if (++frame->next == held->copies) {
		heap_pop(&heap);
		return true;
	}
	heap_move(&heap, entry.frame, MAX(held->due[frame->next], entry.when));
	return false;
}

/* Send what is due, at most a batch. */
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
		struct held *held = held_of(entry.frame);

		vectors[count] = (struct iovec){held + 1, frames[entry.frame].length};
		ports[count] = (struct sockaddr_ll){.sll_family = AF_PACKET, .sll_ifindex = held->ifindex};
		messages[count].msg_hdr = (struct msghdr){.msg_name = &ports[count],
							  .msg_namelen = sizeof(ports[count]),
							  .msg_iov = &vectors[count],
							  .msg_iovlen = 1};
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
	for (int i = 0; i < count; i++)
		if (last[i])
			spare[spares++] = entries[i].frame;
}

static void run(void)
{
	struct pollfd events[] = {
		{.fd = STDIN_FILENO}, /* only its hang-up is of interest */
		{.fd = packets, .events = POLLIN},
		{.fd = wakeups.fd, .events = POLLIN}, /* ppoll leaves negative ones out */
	};

	while (!events[0].revents) {
		struct timespec timeout = {};
		uint64_t now;

		if (events[2].revents) {
			drain_wakeups();
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
	for (uint32_t i = 0; i < heap.size; i++) {
		uint32_t frame = heap.entries[i].frame;

		line->closed += held_of(frame)->copies - frames[frame].next;
	}
	while (waits)
		stop_waiting(waiting[waits - 1]);
}

static void set_up(int control, int links_fd)
{
	struct sched_param priority = {.sched_priority = 1};
	uint32_t capacity;

	line = map(sizeof(*line), control, PROT_READ | PROT_WRITE, 0);
	capacity = line->capacity;
	memory = map(capacity * line->room, -1, PROT_READ | PROT_WRITE, 0);
	frames = map(capacity * sizeof(*frames), -1, PROT_READ | PROT_WRITE, 0);
	spare = map(capacity * sizeof(*spare), -1, PROT_READ | PROT_WRITE, 0);
	waiting = map(capacity * sizeof(*waiting), -1, PROT_READ | PROT_WRITE, 0);
	heap.entries = map(capacity * sizeof(*heap.entries), -1, PROT_READ | PROT_WRITE, 0);
	heap.places = map(capacity * sizeof(*heap.places), -1, PROT_READ | PROT_WRITE, 0);
	for (spares = 0; spares < capacity; spares++)
		spare[spares] = capacity - 1 - spares;
	if (links_fd >= 0)
		links = map(line->links * line->link_stride, links_fd, PROT_READ | PROT_WRITE, 0);
	if (wakeups.fd >= 0) {
		long page = sysconf(_SC_PAGESIZE);

		wakeups.consumer = map(page, wakeups.fd, PROT_READ | PROT_WRITE, 0);
		wakeups.producer = map(page + 2 * line->wakeups, wakeups.fd, PROT_READ, page);
		wakeups.data = (char *)wakeups.producer + page;
	}
	/* All three are for punctuality only: without the right to them frames leave later, and are counted so. */
	line->realtime = !sched_setscheduler(0, SCHED_FIFO, &priority);
	prctl(PR_SET_TIMERSLACK, 1);
	mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
}

int main(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (argc != 5)
		errx(2, "usage: delay_line PACKETS MEMORY LINKS WAKEUPS (descriptors)");
	packets = atoi(argv[1]);
	wakeups.fd = atoi(argv[4]);
	set_up(atoi(argv[2]), atoi(argv[3]));
	if (write(STDOUT_FILENO, "+", 1) != 1)
		err(1, "stdout");
	run();
	return 0;
}
