// Ring all-reduce, reduce-scatter and all-gather over two connected TCP sockets: the inner loop of
// testbed/collectives/tcp_ring.py.
//
// The tensor is cut into slices of n blocks. A slice takes 2n-2 steps: in step s a rank sends block
// (rank - s) mod n to the right and receives block (rank - 1 - s) mod n from the left. The first
// n-1 steps reduce, the others gather (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
// for clusters of workstations", JPDC 2009). What is received in a step is what is sent in the
// next, so a rank is a filter between two byte streams: whatever part of a block has arrived is
// added to and sent on, and the next slice's first send waits for nothing. Slices are small, so
// that what the ring holds stays in the cache: partial sums live in `scratch` and only full sums
// are stored.
//
// A reduce-scatter takes the first n-1 steps alone, an all-gather the others. There a slice has a
// part of each rank's block of the tensor, and ranks begin so that each ends, or begins, with its
// own block. A broadcast is an all-gather in which all blocks but the root's are empty.

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "floats.h"
#include "shared/tcp_ring_native_abi.h"

// What a call does.
struct job {
	const char *in;
	char *out;	   // in a reduce-scatter, as if it had all blocks
	uint32_t width;	   // bytes of an element
	uint64_t count;	   // elements of the tensor, or of each block of it
	uint64_t stride;   // elements from one block of the tensor to the next; 0: slices have them
			   // all
	uint32_t from, to; // steps of a slice, from..to-1
	uint32_t lag;	   // places between a rank's first block and its own
	void (*combine)(void *out, const void *a, const void *b, uint64_t n);
	int rooted; // only the root's block is there, and it is the tensor
};

// A position in one of the two streams.
struct cursor {
	uint64_t first, length; // the slice: its first element, its elements
	uint64_t turn;		// steps of all slices so far
	uint32_t step;		// from..to-1
	uint64_t begin, size;	// the step's block: first byte, bytes
	uint64_t done;		// bytes of the block behind us
	int finished;
};

// The block of the cursor's step. `lead` is 0 for the sending stream, 1 for the receiving one.
static void find_block(struct cursor *c, const struct tcp_ring *r, const struct job *j,
		       uint32_t lead)
{
	uint32_t n = r->ranks, index = (r->rank + 3 * n - lead - j->lag - (c->step - j->from)) % n;
	uint64_t begin = c->length * index / n, end = c->length * (index + 1) / n;

	if (j->rooted) {
		begin = 0;
		end = index == r->root ? c->length : 0;
	} else if (j->stride) {
		begin = j->stride * index;
		end = begin + c->length;
	}
	c->begin = (c->first + begin) * j->width;
	c->size = (end - begin) * j->width;
	c->done = 0;
}

static void enter_slice(struct cursor *c, const struct tcp_ring *r, const struct job *j)
{
	uint64_t block = r->block / j->width;
	uint64_t most = j->stride || j->rooted ? block : block * r->ranks;

	c->length = j->count - c->first < most ? j->count - c->first : most;
	c->finished = c->length == 0;
}

// Skip finished (and empty) blocks.
static void advance(struct cursor *c, const struct tcp_ring *r, const struct job *j, uint32_t lead)
{
	while (!c->finished && c->done == c->size) {
		c->turn++;
		if (++c->step == j->to) {
			c->step = j->from;
			c->first += c->length;
			enter_slice(c, r, j);
		}
		find_block(c, r, j, lead);
	}
}

static void start(struct cursor *c, const struct tcp_ring *r, const struct job *j, uint32_t lead)
{
	*c = (struct cursor){ .step = j->from };
	enter_slice(c, r, j);
	find_block(c, r, j, lead);
	advance(c, r, j, lead);
}

// out[i] = a[i] op b[i]; `out` may be `a` or `b`.
#define COMBINE(name, type, op)                                               \
	static void name(void *out, const void *a, const void *b, uint64_t n) \
	{                                                                     \
		const type *x = a, *y = b;                                    \
		type *z = out;                                                \
                                                                              \
		for (uint64_t i = 0; i < n; i++)                              \
			z[i] = op(x[i], y[i]);                                \
	}

#define SUM(x, y) ((x) + (y))
#define LEAST(x, y) ((y) < (x) ? (y) : (x))
#define MOST(x, y) ((y) > (x) ? (y) : (x))

COMBINE(add_floats, float, SUM)
COMBINE(add_doubles, double, SUM)
COMBINE(add_ints, uint32_t, SUM) // two's complement, because a signed overflow is undefined
COMBINE(add_longs, uint64_t, SUM)
COMBINE(least_floats, float, LEAST)
COMBINE(least_doubles, double, LEAST)
COMBINE(least_ints, int32_t, LEAST)
COMBINE(least_longs, int64_t, LEAST)
COMBINE(most_floats, float, MOST)
COMBINE(most_doubles, double, MOST)
COMBINE(most_ints, int32_t, MOST)
COMBINE(most_longs, int64_t, MOST)

static const struct type {
	uint32_t width;
	void (*combine[3])(void *out, const void *a, const void *b, uint64_t n); // by operation
} TYPES[] = {
	[TCP_RING_FLOAT32] = { 4, { add_floats, least_floats, most_floats } },
	[TCP_RING_FLOAT64] = { 8, { add_doubles, least_doubles, most_doubles } },
	[TCP_RING_INT32] = { 4, { add_ints, least_ints, most_ints } },
	[TCP_RING_INT64] = { 8, { add_longs, least_longs, most_longs } },
};

// The scratch block of a step that receives a partial sum to be sent on: steps 0..n-3 of each
// slice, in turns.
static uint64_t scratch_turn(const struct cursor *c, const struct job *j, uint32_t n, uint32_t step)
{
	return c->turn / (j->to - j->from) * (n - 2) + step;
}

// Bytes of the sender's block that can go out now, and where they are.
static uint64_t sendable(const struct tcp_ring *r, const struct job *j, const struct cursor *tx,
			 const struct cursor *rx, const char **from)
{
	uint32_t n = r->ranks;
	uint64_t ready;

	if (tx->finished)
		return 0;
	if (tx->step == j->from || rx->finished || rx->turn >= tx->turn)
		ready = tx->size;
	else if (rx->turn == tx->turn - 1)
		ready = rx->done / j->width * j->width;
	else
		return 0;
	if (tx->step == 0)
		*from = j->in + tx->begin;
	else if (tx->step < n - 1)
		*from = r->scratch + scratch_turn(tx, j, n, tx->step - 1) % r->slots * r->block;
	else
		*from = j->out + tx->begin;
	*from += tx->done;
	return ready - tx->done;
}

// Where the next bytes go, and how many may be received: 0 while the scratch block still holds
// unsent data.
static uint64_t receivable(const struct tcp_ring *r, const struct job *j, const struct cursor *tx,
			   const struct cursor *rx, char **to)
{
	uint32_t n = r->ranks;
	uint64_t room = rx->size - rx->done, segment = r->segment;

	if (rx->finished)
		return 0;
	if (rx->step >= n - 1) {
		*to = j->out + rx->begin + rx->done;
		return room;
	}
	if (rx->step == n - 2) {
		// The full sum goes to `out`; its last addend only passes through, in the segment
		// behind the blocks.
		*to = r->scratch + r->slots * r->block + rx->done % segment;
		segment -= rx->done % segment;
	} else {
		uint64_t mine = scratch_turn(rx, j, n, rx->step);

		// Sent in the step after it was received; an earlier slice's last use may be turns
		// back.
		if (mine >= (uint64_t)r->slots && !tx->finished) {
			uint64_t old = mine - r->slots;
			uint64_t sent_in = old / (n - 2) * (j->to - j->from) + old % (n - 2) + 1;

			if (tx->turn <= sent_in)
				return 0;
		}
		*to = r->scratch + mine % r->slots * r->block + rx->done;
	}
	return room < segment ? room : segment;
}

// Add the tensor's part to the `got` bytes received at `at`.
static void reduce(const struct tcp_ring *r, const struct job *j, const struct cursor *rx, char *at,
		   uint64_t got)
{
	uint64_t first = rx->done / j->width, end = (rx->done + got) / j->width;
	char *partial = at - rx->done % j->width;
	uint64_t offset = rx->begin + first * j->width;

	if (rx->step < (uint32_t)r->ranks - 2)
		j->combine(partial, j->in + offset, partial, end - first);
	else if (rx->step == (uint32_t)r->ranks - 2)
		j->combine(j->out + offset, j->in + offset, partial, end - first);
}

static int again(void)
{
	return errno == EAGAIN || errno == EINTR;
}

static struct job job_of(const struct tcp_ring *r, uint32_t operation, uint32_t op, uint32_t type,
			 const char *in, char *out, uint64_t count)
{
	uint32_t n = r->ranks, width = TYPES[type].width;
	char *mine = out + r->rank * count * width;
	struct job j = {
		in, out, width, count, count, 0, 2 * n - 2, 0, TYPES[type].combine[op], 0
	};

	switch (operation) {
	case TCP_RING_ALL_REDUCE:
		j.stride = 0;
		break;
	case TCP_RING_REDUCE_SCATTER:
		j.out = out - r->rank * count * width;
		j.to = n - 1;
		j.lag = 1;
		break;
	case TCP_RING_BROADCAST:
		j.from = n - 1;
		j.rooted = 1;
		break;
	case TCP_RING_ALL_GATHER:
		j.from = n - 1;
		if (mine != in)
			memcpy(mine, in, count * width);
	}
	return j;
}

// Reduce `in` over all ranks into `out` (which may be `in`), or its blocks of `count` elements, or
// gather those of all ranks. Returns an outcome; errno has the reason of a failure.
static int run(struct tcp_ring *r, uint32_t operation, uint32_t op, uint32_t type, const char *in,
	       char *out, uint64_t count)
{
	const struct job job = job_of(r, operation, op, type, in, out, count), *j = &job;
	struct cursor tx, rx;
	uint64_t idle_since = 0; // when both streams stood still; 0 while they move

	start(&tx, r, j, 0);
	start(&rx, r, j, 1);
	while (!tx.finished || !rx.finished) {
		const char *from;
		char *to;
		uint64_t leaving = sendable(r, j, &tx, &rx, &from), coming;
		int moved = 0, sleep;
		ssize_t bytes;

		if (leaving) {
			bytes = send(r->right, from, leaving, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (bytes < 0 && !again())
				return TCP_RING_RIGHT_FAILED;
			if (bytes > 0) {
				tx.done += bytes;
				advance(&tx, r, j, 0);
				leaving = sendable(r, j, &tx, &rx, &from);
				moved = 1;
			}
		}
		coming = receivable(r, j, &tx, &rx, &to);
		if (coming) {
			// With nothing to send there is nothing to poll for: after some turns,
			// sleep in recv itself.
			sleep = !moved && !leaving && idle_since &&
				now_ns() - idle_since > r->spin_ns;
			bytes = recv(r->left, to, coming, sleep ? 0 : MSG_DONTWAIT);
			if (bytes == 0)
				errno = 0;
			if (bytes == 0 || (bytes < 0 && !again()))
				return TCP_RING_LEFT_FAILED;
			// A process that was stopped and continued gets EINTR from a recv with a
			// timeout, see signal(7).
			if (bytes < 0 && sleep && errno != EINTR)
				return TCP_RING_LEFT_SILENT;
			if (bytes > 0) {
				reduce(r, j, &rx, to, bytes);
				rx.done += bytes;
				advance(&rx, r, j, 1);
				moved = 1;
			}
		}
		if (moved) {
			if (idle_since)
				r->wait_ns += now_ns() - idle_since;
			idle_since = 0;
			continue;
		}
		if (!idle_since)
			idle_since = now_ns();
		if (now_ns() - idle_since < r->spin_ns) {
			sched_yield();
		} else if (leaving) {
			struct pollfd fds[2] = { { r->right, POLLOUT, 0 }, { r->left, POLLIN, 0 } };
			int ready = poll(fds, coming ? 2 : 1, r->timeout_ms);

			if (ready == 0)
				return coming ? TCP_RING_LEFT_SILENT : TCP_RING_RIGHT_SILENT;
		}
	}
	return TCP_RING_DONE;
}

int tcp_ring_run(struct tcp_ring *r, uint32_t operation, uint32_t op, uint32_t type, const void *in,
		 void *out, uint64_t count)
{
	uint64_t start = now_ns();
	int outcome = run(r, operation, op, type, in, out, count);

	r->total_ns += now_ns() - start;
	return outcome;
}

// An all-reduce of numpy arrays, in one call from Python.
int tcp_ring_all_reduce(struct tcp_ring *r, PyObject *tensor, PyObject *out)
{
	struct floats x, sums;
	void *state;
	int outcome;

	if (!floats_of(tensor, out, &x, &sums) || x.count > r->capacity)
		return TCP_RING_DECLINED;
	state = PyEval_SaveThread();
	outcome = tcp_ring_run(r, TCP_RING_ALL_REDUCE, TCP_RING_SUM, TCP_RING_FLOAT32, x.values,
			       sums.values, x.count);
	PyEval_RestoreThread(state);
	return outcome;
}
