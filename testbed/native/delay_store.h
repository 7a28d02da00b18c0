/* The frames that a delay line holds, in memory of a fixed size, and the links whose frames they
 * wait for. */
#pragma once

#include <err.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>

#include "shared/delay_header_abi.h"
#include "delay_heap.h"
#include "delay_line.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

struct frame {
	uint32_t length;  /* behind struct delay_header */
	uint32_t waiting; /* 1 + index in `waiting`; 0: it waits for no other frame */
	uint32_t next;	  /* the copy that leaves next */
};

static struct delay_line *line;
static struct heap heap;
static struct frame *frames;
static char *memory; /* `room` bytes a frame */
/* free frames; the last one freed is used next, because its memory is in the cache */
static uint32_t *spare, spares;
static uint32_t *waiting, waits;
static char *links;

static void *map(size_t size, int fd, int protection, off_t offset)
{
	void *address = mmap(NULL, size, protection,
			     fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, offset);

	if (address == MAP_FAILED)
		err(1, "mmap of %zu bytes", size);
	return address;
}

/* Allocate memory for the frames, and map the links, if there are any. */
static void store_open(int links_fd)
{
	uint32_t capacity = line->capacity;

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
}

static struct delay_header *header_of(uint32_t frame)
{
	return (struct delay_header *)(memory + frame * line->room);
}

static struct delay_link *link_of(const struct delay_header *header)
{
	return (struct delay_link *)(links + header->link * line->link_stride);
}

/* The frame no longer waits for other frames. */
static void stop_waiting(uint32_t frame)
{
	uint32_t last = waiting[--waits];

	__atomic_fetch_sub(&link_of(header_of(frame))->holding, 1, __ATOMIC_RELAXED);
	waiting[frames[frame].waiting - 1] = last;
	frames[last].waiting = frames[frame].waiting;
	frames[frame].waiting = 0;
}

static bool released(const struct delay_header *header)
{
	return __atomic_load_n(&link_of(header)->passed, __ATOMIC_ACQUIRE) >= header->release;
}

/* Release the frames for which enough others of their link have passed. */
static void release(uint64_t now)
{
	/* downwards, because the last one takes the place of one that is released */
	for (uint32_t i = waits; i--;) {
		uint32_t frame = waiting[i];
		const struct delay_header *header = header_of(frame);

		if (released(header)) {
			stop_waiting(frame);
			heap_move(&heap, frame, MAX(header->due[0], now));
		}
	}
}

static bool valid(const struct delay_header *header, uint32_t size)
{
	return size > sizeof(*header) && size <= line->room && header->copies &&
	       header->copies <= DELAY_COPIES &&
	       (!header->release || (links && header->link < line->links));
}

/* Keep a frame that has been read, of `size` bytes in all; returns whether its memory is now in
 * use. */
static bool keep(uint32_t frame, uint32_t size, uint64_t now)
{
	struct delay_header *header = header_of(frame);

	line->received++;
	if (!valid(header, size)) {
		line->invalid++;
		return false;
	}
	for (int i = 1; i < header->copies; i++) { /* insertion sort: first come, first due */
		uint64_t due = header->due[i];
		int j = i;

		for (; j && header->due[j - 1] > due; j--)
			header->due[j] = header->due[j - 1];
		header->due[j] = due;
	}
	frames[frame] = (struct frame){ .length = size - sizeof(*header) };
	if (header->release) {
		waiting[waits++] = frame;
		frames[frame].waiting = waits;
		heap_push(&heap, frame, MAX(header->due[0], header->latest));
	} else {
		/* even if the time has passed: then the frame is late */
		heap_push(&heap, frame, header->due[0] ? header->due[0] : now);
	}
	return true;
}

/* Drop a frame for which there is no memory: its header says how many copies are lost. */
static void refuse(const struct delay_header *header, uint32_t size)
{
	line->received++;
	if (!valid(header, size)) {
		line->invalid++;
		return;
	}
	line->full += header->copies;
	if (header->release)
		__atomic_fetch_sub(&link_of(header)->holding, 1, __ATOMIC_RELAXED);
}

/* Remove the copy that leaves next from the heap; returns whether it was its frame's last. */
static bool take(struct heap_entry entry)
{
	struct frame *frame = &frames[entry.frame];
	const struct delay_header *header = header_of(entry.frame);

	if (frame->waiting)
		stop_waiting(entry.frame);
	if (++frame->next == header->copies) {
		heap_pop(&heap);
		return true;
	}
	heap_move(&heap, entry.frame, MAX(header->due[frame->next], entry.when));
	return false;
}

/* Count the frames still waiting as dropped. */
static void store_close(void)
{
	for (uint32_t i = 0; i < heap.size; i++) {
		uint32_t frame = heap.entries[i].frame;

		line->closed += header_of(frame)->copies - frames[frame].next;
	}
	while (waits)
		stop_waiting(waiting[waits - 1]);
}
