// One exchange of rows among ranks over connected TCP sockets: the loop of testbed/exchange/mesh.py.
//
// A rank sends each peer the rows that it needs (push), or asks each peer for rows by the numbers of their vertices, and answers what
// it is asked (pull). All peers are served at once, so that no two ranks wait for each other to read. A peer's rows go straight to
// where they are wanted. Once all is handed to the kernel there is only to receive: one system call a peer, which sleeps in the kernel
// until everything is there.

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "clock.h"

#define MAX_PEERS 32

enum kind { REQUEST = 1, ROWS = 2, ODD_ROWS = 3, NOTE = 4 };
enum step { ASKING, MOVING, DONE };
enum outcome { FINE, GONE, SILENT, FOREIGN, UNKNOWN_VERTEX, NOTED, WAITING }; // the last is for notes alone

// Before each message, in the byte order of the one machine that all ranks run on.
struct header {
	uint32_t kind;
	uint32_t exchange; // which one, counted from 1; of a note: an outcome
	uint64_t bytes;    // that follow; of a note, which nothing follows: the rank at fault
};

// One direction of a connection.
struct flow {
	uint32_t step;
	uint32_t blocked; // the socket has taken less than it was given
	uint64_t done;    // bytes of the step's message, its header included
	struct header header;
};

struct peer {
	int32_t fd;             // blocking, with SO_RCVTIMEO
	uint32_t odd;           // its embeddings were not all finite
	uint64_t needed;        // rows that come
	char *into;             // where they go
	const int64_t *asks;    // pull: numbers of their vertices
	uint64_t serves;        // rows that go
	int64_t *rows;          // their positions; pull: room for the numbers that it sends, which become positions
	char *chunk;            // room for chunk_rows rows
	uint64_t gathered;      // bytes of rows that have been in the chunk
	struct flow out, in;
};

struct mesh {
	uint32_t peers;
	uint32_t pull;
	uint32_t exchange;
	uint32_t odd;               // this rank's embeddings are not all finite
	int32_t timeout_ms;
	uint32_t failed;            // comes back: the peer that an outcome other than FINE is about
	uint64_t row_bytes;
	uint64_t chunk_rows;        // rows gathered at once
	const int32_t *positions;   // pull: by vertex; -1: not this rank's
	int64_t vertices;           // entries of it
	uint64_t send_ns;           // time spent gathering and sending, cumulative
	struct peer *peer;
};

static int again(void)
{
	return errno == EAGAIN || errno == EINTR;
}

// Enter a step, or the first one behind it that there is anything to do in.
static void enter(struct flow *f, uint32_t step, int asks, int moves)
{
	if (step == ASKING && !asks)
		step = MOVING;
	if (step == MOVING && !moves)
		step = DONE;
	f->step = step;
	f->done = 0;
}

static void enter_out(const struct mesh *m, struct peer *p, uint32_t step)
{
	enter(&p->out, step, m->pull && p->needed, p->serves != 0);
	p->out.header.exchange = m->exchange;
	p->out.header.kind = p->out.step == ASKING ? REQUEST : m->odd ? ODD_ROWS : ROWS;
	p->out.header.bytes = p->out.step == ASKING ? p->needed * sizeof(int64_t) : p->serves * m->row_bytes;
}

static void enter_in(const struct mesh *m, struct peer *p, uint32_t step)
{
	enter(&p->in, step, m->pull && p->serves, p->needed != 0);
}

static int has_to_send(const struct peer *p)
{
	return p->out.step == ASKING || (p->out.step == MOVING && p->in.step != ASKING);
}

static int unfinished(const struct peer *p)
{
	return p->out.step != DONE || p->in.step != DONE;
}

static void gather(const struct mesh *m, struct peer *p, const char *x)
{
	uint64_t first = p->gathered / m->row_bytes, left = p->serves - first;
	uint64_t count = left < m->chunk_rows ? left : m->chunk_rows;

	for (uint64_t i = 0; i < count; i++)
		memcpy(p->chunk + i * m->row_bytes, x + p->rows[first + i] * m->row_bytes, m->row_bytes);
	p->gathered += count * m->row_bytes;
}

// The rest of a message of which `done` bytes are behind us, as far as `payload` goes.
static struct msghdr rest_of(struct iovec parts[2], struct header *header, uint64_t done, char *payload, uint64_t bytes)
{
	uint64_t skip = done < sizeof(*header) ? done : sizeof(*header);

	parts[0] = (struct iovec){(char *)header + skip, sizeof(*header) - skip};
	parts[1] = (struct iovec){payload, bytes};
	return (struct msghdr){.msg_iov = parts, .msg_iovlen = 2};
}

static int send_some(struct mesh *m, struct peer *p, const char *x)
{
	while (has_to_send(p) && !p->out.blocked) {
		struct flow *out = &p->out;
		uint64_t at = out->done < sizeof(struct header) ? 0 : out->done - sizeof(struct header);
		uint64_t chunk_bytes = m->chunk_rows * m->row_bytes, left = out->header.bytes - at;
		char *payload = (char *)p->asks + at;
		struct iovec parts[2];
		struct msghdr message;
		ssize_t bytes;

		if (out->step == MOVING) {
			if (at == p->gathered)
				gather(m, p, x);
			payload = p->chunk + at % chunk_bytes;
			left = p->gathered - at;
		}
		message = rest_of(parts, &out->header, out->done, payload, left);
		bytes = sendmsg(p->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (bytes < 0 && !again())
			return GONE;
		out->blocked = bytes < (ssize_t)(parts[0].iov_len + parts[1].iov_len);
		if (bytes > 0)
			out->done += bytes;
		if (out->done == sizeof(struct header) + out->header.bytes)
			enter_out(m, p, out->step + 1);
	}
	return FINE;
}

// Numbers of vertices to positions of rows.
static int look_up(const struct mesh *m, struct peer *p)
{
	for (uint64_t i = 0; i < p->serves; i++) {
		int64_t vertex = p->rows[i];

		if (vertex < 0 || vertex >= m->vertices || m->positions[vertex] < 0)
			return UNKNOWN_VERTEX;
		p->rows[i] = m->positions[vertex];
	}
	return FINE;
}

static int receive(struct mesh *m, struct peer *p, int flags)
{
	struct flow *in = &p->in;
	uint64_t at = in->done < sizeof(struct header) ? 0 : in->done - sizeof(struct header), due = 0;
	char *into = NULL;
	struct iovec parts[2];
	struct msghdr message;
	ssize_t bytes;

	if (in->step == ASKING) {
		into = (char *)p->rows;
		due = p->serves * sizeof(int64_t);
	} else if (in->step == MOVING) {
		into = p->into;
		due = p->needed * m->row_bytes;
	}
	message = rest_of(parts, &in->header, in->done, into + at, due - at);
	bytes = recvmsg(p->fd, &message, flags);
	if (bytes < 0 && errno == EINTR) // also after SIGCONT, where there is a timeout: signal(7)
		return FINE;
	if (bytes < 0 && errno == EAGAIN)
		return flags & MSG_DONTWAIT ? FINE : SILENT;
	if (bytes <= 0) {
		errno = bytes ? errno : 0;
		return GONE;
	}
	in->done += bytes;
	if (in->done < sizeof(struct header))
		return FINE;
	if (in->header.kind == NOTE)
		return NOTED;
	if (in->step == DONE || (in->step == ASKING) != (in->header.kind == REQUEST) || in->header.kind > ODD_ROWS ||
	    in->header.exchange != m->exchange || in->header.bytes != due)
		return FOREIGN;
	if (in->done < sizeof(struct header) + due)
		return FINE;
	if (in->step == ASKING && look_up(m, p))
		return UNKNOWN_VERTEX;
	if (in->step == MOVING)
		p->odd = in->header.kind == ODD_ROWS;
	enter_in(m, p, in->step + 1);
	return FINE;
}

// Wait until something can be moved, and receive what has come.
static int wait_and_receive(struct mesh *m)
{
	struct pollfd fds[MAX_PEERS];
	int ready, outcome;

	for (uint32_t i = 0; i < m->peers; i++) {
		struct peer *p = &m->peer[i];

		// Who is done may be in the next exchange already. Who is not sends nothing but what is due, or a note.
		fds[i] = (struct pollfd){unfinished(p) ? p->fd : -1, has_to_send(p) ? POLLIN | POLLOUT : POLLIN, 0};
	}
	ready = poll(fds, m->peers, m->timeout_ms);
	for (uint32_t i = 0; i < m->peers; i++) {
		struct peer *p = &m->peer[i];

		if (ready == 0 && unfinished(p)) {
			m->failed = i;
			return SILENT;
		}
		if (ready <= 0 || !fds[i].revents)
			continue;
		if (fds[i].revents & POLLOUT)
			p->out.blocked = 0;
		if (fds[i].revents & ~POLLOUT) {
			outcome = receive(m, p, MSG_DONTWAIT);
			if (outcome) {
				m->failed = i;
				return outcome;
			}
		}
	}
	return FINE;
}

// Receive all that is still due, a peer at a time: what the others send meanwhile waits in the kernel.
static int receive_rest(struct mesh *m)
{
	for (uint32_t i = 0; i < m->peers; i++) {
		struct peer *p = &m->peer[i];

		while (p->in.step != DONE) {
			int outcome = receive(m, p, MSG_WAITALL);

			if (outcome) {
				m->failed = i;
				return outcome;
			}
		}
	}
	return FINE;
}

// Do one exchange of the rows of `x`. Returns an outcome; errno says more where a peer is gone.
int mesh_exchange(struct mesh *m, const char *x);

int mesh_exchange(struct mesh *m, const char *x)
{
	for (uint32_t i = 0; i < m->peers; i++) {
		struct peer *p = &m->peer[i];

		p->odd = 0;
		p->gathered = 0;
		p->out.blocked = 0;
		enter_out(m, p, ASKING);
		enter_in(m, p, ASKING);
	}
	for (;;) {
		uint64_t start = now_ns();
		int sending = 0, outcome;

		for (uint32_t i = 0; i < m->peers; i++) {
			outcome = send_some(m, &m->peer[i], x);
			if (outcome) {
				m->failed = i;
				return outcome;
			}
			sending |= m->peer[i].out.step != DONE;
		}
		m->send_ns += now_ns() - start;
		outcome = sending ? wait_and_receive(m) : receive_rest(m);
		if (outcome || !sending)
			return outcome;
	}
}
