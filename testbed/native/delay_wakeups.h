/* The consumer's side of a BPF ring buffer (Documentation/bpf/ringbuf.rst) whose records are only
 * wake-ups.
 */
#pragma once

#include <linux/bpf.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "delay_store.h"

struct wakeups {
	int fd; /* -1: none */
	uint64_t size;
	unsigned long *consumer, *producer;
	char *data; /* mapped twice in a row, so that every record is contiguous */
};

static inline struct wakeups wakeups_open(int fd, uint64_t size)
{
	struct wakeups ring = { .fd = fd, .size = size };
	long page = sysconf(_SC_PAGESIZE);

	if (fd >= 0) {
		ring.consumer = map(page, fd, PROT_READ | PROT_WRITE, 0);
		ring.producer = map(page + 2 * size, fd, PROT_READ, page);
		ring.data = (char *)ring.producer + page;
	}
	return ring;
}

/* Consume all records. */
static inline void wakeups_drain(struct wakeups *ring)
{
	unsigned long consumer = *ring->consumer;

	while (consumer < __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE)) {
		uint32_t *header = (uint32_t *)(ring->data + (consumer & (ring->size - 1)));
		uint32_t length = __atomic_load_n(header, __ATOMIC_ACQUIRE);

		if (length & BPF_RINGBUF_BUSY_BIT) /* it wakes again when it is written */
			break;
		length &= ~BPF_RINGBUF_DISCARD_BIT;
		consumer += (length + BPF_RINGBUF_HDR_SZ + 7) & ~7u;
		__atomic_store_n(ring->consumer, consumer, __ATOMIC_RELEASE);
	}
}
