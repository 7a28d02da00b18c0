// One exchange of rows among ranks over connected TCP sockets: the loop of
// testbed/exchange/mesh.py.
//
// A rank sends each peer the rows that the peer needs (push), or requests rows from each peer by
// the numbers of their vertices and answers requests (pull). All peers are served at once, so that
// no two ranks wait for each other to read. A peer's rows go straight to their place. Once the
// kernel has all data to send, only receiving is left: one system call per peer, which sleeps in
// the kernel until everything has arrived.

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "clock.h"
#include "rows.h"
#include "shared/mesh_native_abi.h"

#define MAX_PEERS 32

static int again(void)
{
	return errno == EAGAIN || errno == EINTR;
}

// Enter a step, or the first later one that has anything to do.
static void enter(struct mesh_flow *f, uint32_t step, int requests, int moves)
{
	if (step == MESH_REQUESTING && !requests)
		step = MESH_MOVING;
	if (step == MESH_MOVING && !moves)
		step = MESH_DONE;
	f->step = step;
	f->done = 0;
}

// Of a message of rows: rows, their steps, and the largest magnitude.
static uint64_t message_bytes(const struct mesh *m, uint64_t rows)
{
	return rows * (m->source.row_bytes + (m->stepped ? 4 : 0)) + 4;
}

static void enter_out(const struct mesh *m, struct mesh_peer *p, uint32_t step)
{
	enter(&p->out, step, m->pull && p->needed, p->serves != 0);
	p->out.header.tag = m->tag;
	p->out.header.exchange = m->exchange;
	p->out.header.kind = p->out.step == MESH_REQUESTING ? MESH_REQUEST : MESH_ROWS;
	p->out.header.bytes = p->out.step == MESH_REQUESTING ? p->needed * sizeof(int64_t)
							     : message_bytes(m, p->serves);
}

static void enter_in(const struct mesh *m, struct mesh_peer *p, uint32_t step)
{
	enter(&p->in, step, m->pull && p->serves, p->needed != 0);
}

static int has_to_send(const struct mesh_peer *p)
{
	return p->out.step == MESH_REQUESTING ||
	       (p->out.step == MESH_MOVING && p->in.step != MESH_REQUESTING);
}

static int unfinished(const struct mesh_peer *p)
{
	return p->out.step != MESH_DONE || p->in.step != MESH_DONE;
}

// Pack the next rows; after the last ones, the steps and the largest magnitude are there, too.
static void gather(struct mesh *m, struct mesh_peer *p, const float *x)
{
	uint64_t first = p->gathered / m->source.row_bytes, left = p->serves - first;
	uint64_t count = left < m->chunk_rows ? left : m->chunk_rows;
	uint32_t absmax = pack_rows(&m->source, x, p->rows + first, count, left, p->chunk,
				    m->stepped ? p->steps + first : NULL);
	uint32_t *most = (uint32_t *)p->steps + (m->stepped ? p->serves : 0);

	*most = first && *most > absmax ? *most : absmax;
	m->absmax = *most > m->absmax ? *most : m->absmax;
	p->gathered += count * m->source.row_bytes;
}

// The rest of a message, up to the end of `payload`, once `done` of its bytes are finished; the
// third part is the caller's.
static struct msghdr rest_of(struct iovec parts[3], struct mesh_header *header, uint64_t done,
			     char *payload, uint64_t bytes)
{
	uint64_t skip = done < sizeof(*header) ? done : sizeof(*header);

	parts[0] = (struct iovec){ (char *)header + skip, sizeof(*header) - skip };
	parts[1] = (struct iovec){ payload, bytes };
	parts[2] = (struct iovec){};
	return (struct msghdr){ .msg_iov = parts, .msg_iovlen = 3 };
}

static int send_some(struct mesh *m, struct mesh_peer *p, const float *x)
{
	uint64_t rows = p->serves * m->source.row_bytes;

	while (has_to_send(p) && !p->out.blocked) {
		struct mesh_flow *out = &p->out;
		uint64_t at = out->done < sizeof(struct mesh_header)
				      ? 0
				      : out->done - sizeof(struct mesh_header);
		uint64_t chunk_bytes = m->chunk_rows * m->source.row_bytes;
		uint64_t left = out->header.bytes - at;
		char *payload = (char *)p->requests + at;
		struct iovec parts[3];
		struct msghdr message;
		ssize_t bytes;

		if (out->step == MESH_MOVING && at < rows) {
			if (at == p->gathered)
				gather(m, p, x);
			payload = p->chunk + at % chunk_bytes;
			left = p->gathered - at;
		} else if (out->step == MESH_MOVING) {
			payload = (char *)p->steps + (at - rows);
		}
		message = rest_of(parts, &out->header, out->done, payload, left);
		if (out->step == MESH_MOVING && at < rows && p->gathered == rows)
			parts[2] = (struct iovec){ p->steps, out->header.bytes - rows };
		bytes = sendmsg(p->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (bytes < 0 && !again())
			return MESH_GONE;
		out->blocked = bytes <
			       (ssize_t)(parts[0].iov_len + parts[1].iov_len + parts[2].iov_len);
		if (bytes > 0)
			out->done += bytes;
		if (out->done == sizeof(struct mesh_header) + out->header.bytes)
			enter_out(m, p, out->step + 1);
	}
	return MESH_FINE;
}

// Translate numbers of vertices to positions of rows.
static int look_up(const struct mesh *m, struct mesh_peer *p)
{
	for (uint64_t i = 0; i < p->serves; i++) {
		int64_t vertex = p->rows[i];

		if (vertex < 0 || vertex >= m->vertices || m->positions[vertex] < 0)
			return MESH_UNKNOWN_VERTEX;
		p->rows[i] = m->positions[vertex];
	}
	return MESH_FINE;
}

static int receive(struct mesh *m, struct mesh_peer *p, int flags)
{
	struct mesh_flow *in = &p->in;
	uint64_t at = in->done < sizeof(struct mesh_header) ? 0
							    : in->done - sizeof(struct mesh_header),
		 due = 0;
	char *into = NULL;
	struct iovec parts[3];
	struct msghdr message;
	ssize_t bytes;

	if (in->step == MESH_REQUESTING) {
		into = (char *)p->rows;
		due = p->serves * sizeof(int64_t);
	} else if (in->step == MESH_MOVING) {
		into = p->into;
		due = message_bytes(m, p->needed);
	}
	message = rest_of(parts, &in->header, in->done, into + at, due - at);
	bytes = recvmsg(p->fd, &message, flags);
	if (bytes < 0 && errno == EINTR) // with a timeout, also after SIGCONT: signal(7)
		return MESH_FINE;
	if (bytes < 0 && errno == EAGAIN)
		return flags & MSG_DONTWAIT ? MESH_FINE : MESH_SILENT;
	if (bytes <= 0) {
		errno = bytes ? errno : 0;
		return MESH_GONE;
	}
	in->done += bytes;
	if (in->done < sizeof(struct mesh_header))
		return MESH_FINE;
	if (in->header.kind == MESH_NOTE)
		return MESH_NOTED;
	if (in->step == MESH_DONE ||
	    (in->step == MESH_REQUESTING) != (in->header.kind == MESH_REQUEST) ||
	    in->header.kind > MESH_ROWS || in->header.tag != m->tag ||
	    in->header.exchange != m->exchange || in->header.bytes != due)
		return MESH_FOREIGN;
	if (in->done < sizeof(struct mesh_header) + due)
		return MESH_FINE;
	if (in->step == MESH_REQUESTING && look_up(m, p))
		return MESH_UNKNOWN_VERTEX;
	enter_in(m, p, in->step + 1);
	return MESH_FINE;
}

// Wait until data can be moved, and receive what has arrived.
static int wait_and_receive(struct mesh *m)
{
	struct pollfd fds[MAX_PEERS];
	int ready, outcome;

	for (uint32_t i = 0; i < m->peers; i++) {
		struct mesh_peer *p = &m->peer[i];

		// A peer that is done may already be in the next exchange. One that is not sends
		// only what is due, or a note.
		fds[i] = (struct pollfd){ unfinished(p) ? p->fd : -1,
					  has_to_send(p) ? POLLIN | POLLOUT : POLLIN, 0 };
	}
	ready = poll(fds, m->peers, m->timeout_ms);
	for (uint32_t i = 0; i < m->peers; i++) {
		struct mesh_peer *p = &m->peer[i];

		if (ready == 0 && unfinished(p)) {
			m->failed = i;
			return MESH_SILENT;
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
	return MESH_FINE;
}

// Receive the rest, one peer at a time; meanwhile the data of other peers waits in the kernel.
static int receive_rest(struct mesh *m)
{
	for (uint32_t i = 0; i < m->peers; i++) {
		struct mesh_peer *p = &m->peer[i];

		while (p->in.step != MESH_DONE) {
			int outcome = receive(m, p, MSG_WAITALL);

			if (outcome) {
				m->failed = i;
				return outcome;
			}
		}
	}
	return MESH_FINE;
}

// Do one exchange of the rows of `x`. Returns an outcome; errno has the reason if a peer is gone.
int mesh_exchange(struct mesh *m, const float *x);

int mesh_exchange(struct mesh *m, const float *x)
{
	m->absmax = 0;
	for (uint32_t i = 0; i < m->peers; i++) {
		struct mesh_peer *p = &m->peer[i];

		p->gathered = 0;
		p->out.blocked = 0;
		enter_out(m, p, MESH_REQUESTING);
		enter_in(m, p, MESH_REQUESTING);
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
			sending |= m->peer[i].out.step != MESH_DONE;
		}
		m->send_ns += now_ns() - start;
		outcome = sending ? wait_and_receive(m) : receive_rest(m);
		if (outcome || !sending)
			return outcome;
	}
}
