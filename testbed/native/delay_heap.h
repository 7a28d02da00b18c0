/* Frames ordered by departure time: a binary heap that knows the place of each frame, so that
 * frames can be moved. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct heap_entry {
	uint64_t when;	   /* ns, CLOCK_MONOTONIC */
	uint32_t sequence; /* at equal times, the first to arrive leaves first */
	uint32_t frame;
};

struct heap {
	struct heap_entry *entries;
	uint32_t *places; /* by frame: its index in `entries` */
	uint32_t size;
	uint32_t sequence;
};

static inline bool heap_before(const struct heap_entry *a, const struct heap_entry *b)
{
	return a->when != b->when ? a->when < b->when : (int32_t)(a->sequence - b->sequence) < 0;
}

static inline void heap_put(struct heap *heap, uint32_t index, struct heap_entry entry)
{
	heap->entries[index] = entry;
	heap->places[entry.frame] = index;
}

/* Put `entry` where it belongs, starting from a free place. */
static inline void heap_settle(struct heap *heap, uint32_t index, struct heap_entry entry)
{
	while (index && heap_before(&entry, &heap->entries[(index - 1) / 2])) {
		heap_put(heap, index, heap->entries[(index - 1) / 2]);
		index = (index - 1) / 2;
	}
	for (uint32_t child; (child = 2 * index + 1) < heap->size; index = child) {
		child += child + 1 < heap->size &&
			 heap_before(&heap->entries[child + 1], &heap->entries[child]);
		if (!heap_before(&heap->entries[child], &entry))
			break;
		heap_put(heap, index, heap->entries[child]);
	}
	heap_put(heap, index, entry);
}

static inline void heap_push(struct heap *heap, uint32_t frame, uint64_t when)
{
	struct heap_entry entry = { when, heap->sequence++, frame };

	heap_settle(heap, heap->size++, entry);
}

/* Change the time of a frame in the heap. */
static inline void heap_move(struct heap *heap, uint32_t frame, uint64_t when)
{
	struct heap_entry entry = heap->entries[heap->places[frame]];

	entry.when = when;
	heap_settle(heap, heap->places[frame], entry);
}

/* Remove the first. */
static inline void heap_pop(struct heap *heap)
{
	struct heap_entry last = heap->entries[--heap->size];

	if (heap->size)
		heap_settle(heap, 0, last);
}
