// Ring all-reduce over two connected TCP sockets: the inner loop of
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

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "clock.h"
#include "shared/tcp_ring_native_abi.h"

// A position in one of the two streams.
struct cursor {
	uint64_t first, length; // the slice: its first element, its elements
	uint64_t turn;		// steps of all slices so far
	uint32_t step;		// 0..2n-3
	uint64_t begin, size;	// the step's block: first element, bytes
	uint64_t done;		// bytes of the block behind us
	int finished;
};

static void find_block(struct cursor *c, uint32_t index, uint32_t ranks)
{
	uint64_t begin = c->length * index / ranks, end = c->length * (index + 1) / ranks;

	c->begin = c->first + begin;
	c->size = (end - begin) * sizeof(float);
	c->done = 0;
}

static void enter_slice(struct cursor *c, const struct tcp_ring *r, uint64_t count)
{
	uint64_t most = r->block * r->ranks;

	c->length = count - c->first < most ? count - c->first : most;
	c->finished = c->length == 0;
}

// Skip finished (and empty) blocks. `lead` is 0 for the sending stream, 1 for the receiving one.
static void advance(struct cursor *c, const struct tcp_ring *r, uint64_t count, uint32_t lead)
{
	uint32_t n = r->ranks;

	while (!c->finished && c->done == c->size) {
		c->turn++;
		if (++c->step == 2 * n - 2) {
			c->step = 0;
			c->first += c->length;
			enter_slice(c, r, count);
		}
		find_block(c, (r->rank + 3 * n - lead - c->step) % n, n);
	}
}

static void start(struct cursor *c, const struct tcp_ring *r, uint64_t count, uint32_t lead)
{
	uint32_t n = r->ranks;

	*c = (struct cursor){ 0 };
	enter_slice(c, r, count);
	find_block(c, (r->rank + n - lead) % n, n);
	advance(c, r, count, lead);
}

static void add_into(float *restrict sum, const float *restrict other, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		sum[i] += other[i];
}

// `sum` may be `a`: the tensor is reduced in place.
static void add_to(float *sum, const float *a, const float *restrict b, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		sum[i] = a[i] + b[i];
}

// The scratch block of a step that receives a partial sum to be sent on: steps 0..n-3 of each
// slice, in turns.
static uint64_t scratch_turn(const struct cursor *c, uint32_t n, uint32_t step)
{
	return c->turn / (2 * n - 2) * (n - 2) + step;
}

// Bytes of the sender's block that can go out now, and where they are.
static uint64_t sendable(const struct tcp_ring *r, const struct cursor *tx, const struct cursor *rx,
			 const float *in, const float *out, const char **from)
{
	uint32_t n = r->ranks;
	uint64_t ready;

	if (tx->finished)
		return 0;
	if (tx->step == 0 || rx->finished || rx->turn >= tx->turn)
		ready = tx->size;
	else if (rx->turn == tx->turn - 1)
		ready = rx->done / sizeof(float) * sizeof(float);
	else
		return 0;
	if (tx->step == 0)
		*from = (const char *)(in + tx->begin);
	else if (tx->step < n - 1)
		*from = (const char *)(r->scratch +
				       scratch_turn(tx, n, tx->step - 1) % r->slots * r->block);
	else
		*from = (const char *)(out + tx->begin);
	*from += tx->done;
	return ready - tx->done;
}

// Where the next bytes go, and how many may be received: 0 while the scratch block still holds
// unsent data.
static uint64_t receivable(const struct tcp_ring *r, const struct cursor *tx,
			   const struct cursor *rx, float *out, char **to)
{
	uint32_t n = r->ranks;
	uint64_t room = rx->size - rx->done, segment = r->segment * sizeof(float);

	if (rx->finished)
		return 0;
	if (rx->step >= n - 1) {
		*to = (char *)(out + rx->begin) + rx->done;
		return room;
	}
	if (rx->step == n - 2) {
		// The full sum goes to `out`; its last addend only passes through, in the segment
		// behind the blocks.
		*to = (char *)(r->scratch + r->slots * r->block) + rx->done % segment;
		segment -= rx->done % segment;
	} else {
		uint64_t mine = scratch_turn(rx, n, rx->step);

		// Sent in the step after it was received; an earlier slice's last use may be turns
		// back.
		if (mine >= (uint64_t)r->slots && !tx->finished) {
			uint64_t old = mine - r->slots;
			uint64_t sent_in = old / (n - 2) * (2 * n - 2) + old % (n - 2) + 1;

			if (tx->turn <= sent_in)
				return 0;
		}
		*to = (char *)(r->scratch + mine % r->slots * r->block) + rx->done;
	}
	return room < segment ? room : segment;
}

// Add the tensor's part to the `got` bytes received at `at`.
static void reduce(const struct tcp_ring *r, const struct cursor *rx, const float *in, float *out,
		   char *at, uint64_t got)
{
	uint64_t first = rx->done / sizeof(float), end = (rx->done + got) / sizeof(float);
	float *partial = (float *)(at - rx->done % sizeof(float));
	const float *mine = in + rx->begin + first;

	if (rx->step < (uint32_t)r->ranks - 2)
		add_into(partial, mine, end - first);
	else if (rx->step == (uint32_t)r->ranks - 2)
		add_to(out + rx->begin + first, mine, partial, end - first);
}

static int again(void)
{
	return errno == EAGAIN || errno == EINTR;
}

// Sum `in` over all ranks into `out` (which may be `in`). Returns an outcome; errno has the reason
// of a failure.
int tcp_ring_all_reduce(struct tcp_ring *r, const float *in, float *out, uint64_t count);

int tcp_ring_all_reduce(struct tcp_ring *r, const float *in, float *out, uint64_t count)
{
	struct cursor tx, rx;
	uint64_t idle_since = 0; // when both streams stood still; 0 while they move

	start(&tx, r, count, 0);
	start(&rx, r, count, 1);
	while (!tx.finished || !rx.finished) {
		const char *from;
		char *to;
		uint64_t leaving = sendable(r, &tx, &rx, in, out, &from), coming;
		int moved = 0, sleep;
		ssize_t bytes;

		if (leaving) {
			bytes = send(r->right, from, leaving, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (bytes < 0 && !again())
				return TCP_RING_RIGHT_FAILED;
			if (bytes > 0) {
				tx.done += bytes;
				advance(&tx, r, count, 0);
				leaving = sendable(r, &tx, &rx, in, out, &from);
				moved = 1;
			}
		}
		coming = receivable(r, &tx, &rx, out, &to);
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
				reduce(r, &rx, in, out, to, bytes);
				rx.done += bytes;
				advance(&rx, r, count, 1);
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
