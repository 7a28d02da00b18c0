// Ranks that own parts of a graph: what the others ask them, and how they answer
// (testbed/sampling/peers.py).
//
// A thread for each connection answers, without the interpreter. So a rank that asks may wait for
// one that is computing, and while all peers send at once nobody waits for somebody who does not
// read: those who ask read all replies at once.

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "clock.h"
#include "draw.h"

#include "shared/parts_native_abi.h"

struct serving {
	struct parts_server *server;
	int fd;
};

// Receive all of something. Returns whether it has come; with `idle`, however long that takes.
static bool receive(int fd, void *to, uint64_t bytes, bool idle)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t got = recv(fd, (char *)to + done, bytes - done, 0);

		if (got > 0)
			done += got;
		else if (got == 0 || (errno != EINTR && !(errno == EAGAIN && idle && !done)))
			return false;
	}
	return true;
}

static bool send_all(int fd, const void *from, uint64_t bytes)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t put = send(fd, (const char *)from + done, bytes - done, MSG_NOSIGNAL);

		if (put > 0)
			done += put;
		else if (put == 0 || errno != EINTR)
			return false;
	}
	return true;
}

static uint64_t words(uint64_t bytes)
{
	return (bytes + 3) / 4 * 4;
}

// Vertices become rows. Returns whether this rank owns all.
static bool find_rows(const struct part *p, int32_t *vertices, uint64_t count, int32_t *rows)
{
	for (uint64_t i = 0; i < count; i++) {
		if (vertices[i] < 0 || (uint64_t)vertices[i] >= p->vertices)
			return false;
		rows[i] = p->rows[vertices[i]];
		if (rows[i] < 0)
			return false;
	}
	return true;
}

static uint64_t room_of(const struct part *p, const struct parts_request *r)
{
	if (r->kind == PARTS_ROWS)
		return r->count * p->row_bytes;
	return words(r->count) + 4 * r->count * r->fanout;
}

// Returns the bytes of the answer.
static uint64_t answer(const struct part *p, const struct parts_request *r, const int32_t *vertices,
		       const int32_t *rows, char *to)
{
	uint8_t *counts = (uint8_t *)to;
	int32_t *out = (int32_t *)(to + words(r->count));
	uint64_t total = 0;

	if (r->kind == PARTS_ROWS) {
		copy_rows(p->features, p->row_bytes, rows, r->count, to);
		return r->count * p->row_bytes;
	}
	for (uint64_t i = 0; i < r->count; i++) {
		uint32_t got;

		fetch_neighbours(p->indptr, p->indices, rows, i, r->count);
		got = draw_one(p->indptr, p->indices, rows[i], vertices[i], r->fanout, r->key,
			       out + total);
		counts[i] = got;
		total += got;
	}
	memset(to + r->count, 0, words(r->count) - r->count);
	return words(r->count) + 4 * total;
}

static bool is_sound(const struct parts_request *r)
{
	if (r->magic != PARTS_MAGIC || r->count > PARTS_VERTICES)
		return false;
	return r->kind == PARTS_ROWS ||
	       (r->kind == PARTS_SAMPLE && r->fanout && r->fanout <= PARTS_FANOUT);
}

static void *serve(void *argument)
{
	struct serving mine = *(struct serving *)argument;
	struct parts_server *s = mine.server;
	struct parts_request r;
	uint64_t room = 0, known = 0;
	int32_t *vertices = NULL, *rows = NULL;
	char *data = NULL;

	free(argument);
	while (receive(mine.fd, &r, sizeof(r), true) && is_sound(&r)) {
		struct parts_reply reply = { .magic = PARTS_MAGIC };
		uint64_t need = room_of(&s->part, &r);

		if (r.count > known) {
			free(vertices);
			free(rows);
			known = r.count;
			vertices = malloc(4 * known);
			rows = malloc(4 * known);
		}
		if (need > room) {
			free(data);
			room = need;
			data = malloc(room);
		}
		if (!vertices || !rows || (room && !data) ||
		    !receive(mine.fd, vertices, 4 * r.count, false))
			break;
		if (find_rows(&s->part, vertices, r.count, rows))
			reply.bytes = answer(&s->part, &r, vertices, rows, data);
		else
			reply.status = PARTS_REFUSED;
		__atomic_fetch_add(&s->requests, 1, __ATOMIC_RELAXED);
		__atomic_fetch_add(&s->bytes, reply.bytes, __ATOMIC_RELAXED);
		if (!send_all(mine.fd, &reply, sizeof(reply)) ||
		    !send_all(mine.fd, data, reply.bytes))
			break;
	}
	shutdown(mine.fd, SHUT_RDWR); // whoever waits for an answer gets none
	free(vertices);
	free(rows);
	free(data);
	return NULL;
}

void parts_stop(struct parts_server *s);

// End all threads.
void parts_stop(struct parts_server *s)
{
	for (uint32_t i = 0; i < s->connections; i++)
		shutdown(s->fds[i], SHUT_RDWR);
	for (uint32_t i = 0; i < s->connections; i++)
		pthread_join(s->threads[i], NULL);
	s->connections = 0;
}

int parts_start(struct parts_server *s, uint32_t connections);

// Begin to answer on the first `connections` of `fds`. Returns an errno, or 0.
int parts_start(struct parts_server *s, uint32_t connections)
{
	s->connections = 0;
	for (uint32_t i = 0; i < connections; i++) {
		struct serving *argument = malloc(sizeof(*argument));
		pthread_t thread;
		int error;

		if (!argument) {
			parts_stop(s);
			return ENOMEM;
		}
		*argument = (struct serving){ s, s->fds[i] };
		error = pthread_create(&thread, NULL, serve, argument);
		if (error) {
			free(argument);
			parts_stop(s);
			return error;
		}
		s->threads[i] = thread;
		s->connections++;
	}
	return 0;
}

static uint64_t request_bytes(const struct parts_peer *p)
{
	return sizeof(p->request) + 4 * p->count;
}

static uint64_t reply_bytes(const struct parts_peer *p)
{
	return sizeof(p->reply) + (p->replied ? p->reply.bytes : 0);
}

static bool is_done(const struct parts_peer *p)
{
	return !p->count || (p->replied && p->received == reply_bytes(p));
}

static bool is_later(void)
{
	return errno == EAGAIN || errno == EINTR;
}

// Send what the socket takes. Returns enum parts_outcome.
static int push(struct parts_peer *p)
{
	while (p->sent < request_bytes(p)) {
		bool head = p->sent < sizeof(p->request);
		const char *from = head ? (const char *)&p->request + p->sent
					: (const char *)p->vertices + p->sent - sizeof(p->request);
		uint64_t left = head ? sizeof(p->request) - p->sent : request_bytes(p) - p->sent;
		ssize_t put = send(p->fd, from, left,
				   MSG_DONTWAIT | MSG_NOSIGNAL | (head ? MSG_MORE : 0));

		if (put < 0)
			return is_later() ? PARTS_FINE : PARTS_GONE;
		p->sent += put;
	}
	return PARTS_FINE;
}

// Receive what has come. Returns enum parts_outcome.
static int pull(struct parts_peer *p)
{
	while (!is_done(p)) {
		bool head = p->received < sizeof(p->reply);
		char *to = head ? (char *)&p->reply + p->received
				: p->into + p->received - sizeof(p->reply);
		uint64_t left = head ? sizeof(p->reply) - p->received
				     : reply_bytes(p) - p->received;
		ssize_t got = recv(p->fd, to, left, MSG_DONTWAIT);

		if (got == 0)
			return PARTS_GONE;
		if (got < 0)
			return is_later() ? PARTS_FINE : PARTS_GONE;
		p->received += got;
		if (p->received != sizeof(p->reply) || p->replied)
			continue;
		if (p->reply.magic != PARTS_MAGIC || p->reply.bytes > p->room)
			return PARTS_FOREIGN;
		if (p->reply.status != PARTS_FINE)
			return PARTS_REFUSED;
		p->replied = 1;
	}
	return PARTS_FINE;
}

int parts_ask(struct parts *q, uint16_t kind, uint16_t fanout, uint64_t key);

// Ask all peers about their vertices at once, and wait for their answers. Returns enum
// parts_outcome.
int parts_ask(struct parts *q, uint16_t kind, uint16_t fanout, uint64_t key)
{
	struct pollfd polled[PARTS_PEERS];
	uint64_t moved = now_ns();
	bool any = false;

	for (uint32_t i = 0; i < q->peers; i++) {
		struct parts_peer *p = &q->peer[i];

		p->sent = p->received = p->replied = 0;
		p->request = (struct parts_request){ PARTS_MAGIC, kind, fanout, p->count, key };
		any |= p->count != 0;
	}
	q->relays += any;
	for (;;) {
		int64_t left = q->timeout_ms - (int64_t)(now_ns() - moved) / 1000000;
		uint32_t waiting = 0, last = 0;

		for (uint32_t i = 0; i < q->peers; i++) {
			struct parts_peer *p = &q->peer[i];
			uint64_t before = p->sent + p->received;
			int outcome = PARTS_FINE;

			if (!is_done(p)) {
				outcome = push(p);
				if (outcome == PARTS_FINE)
					outcome = pull(p);
			}
			if (outcome != PARTS_FINE) {
				q->failed = i;
				return outcome;
			}
			if (p->sent + p->received != before)
				moved = now_ns();
			if (is_done(p))
				continue;
			last = i;
			polled[waiting].fd = p->fd;
			polled[waiting].events = POLLIN;
			if (p->sent < request_bytes(p))
				polled[waiting].events |= POLLOUT;
			waiting++;
		}
		if (!waiting)
			break;
		if (left <= 0) {
			q->failed = last;
			return PARTS_SILENT;
		}
		poll(polled, waiting, left);
	}
	for (uint32_t i = 0; i < q->peers; i++) {
		q->sent_bytes += q->peer[i].sent * (q->peer[i].count != 0);
		q->received_bytes += q->peer[i].received * (q->peer[i].count != 0);
	}
	return PARTS_FINE;
}
