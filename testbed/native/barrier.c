/* The waiting of testbed/bench/barrier.py: ranks sleep until the last one has arrived, and then
 * until one time on the clock. None takes another's CPU meanwhile, and all have waited alike, so
 * the scheduler has no reason to let one begin much later than the others.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

/* From the last arrival to the start: all are woken, some of them by the same CPU. */
#define BEFORE_NS 100000
#define BEFORE_RANK_NS 20000

#define BROKEN (1u << 31)

struct gate {
	int64_t arrived, start_ns;
	uint32_t opened; /* how often, and whether it is broken; a futex */
};

static long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
	return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static struct timespec timespec_of(int64_t ns)
{
	return (struct timespec){ .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
}

/* Sleep until a time on the clock, as exactly as the clock allows. */
static void sleep_until(int64_t ns)
{
	struct timespec until = timespec_of(ns);

	prctl(PR_SET_TIMERSLACK, 1);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
		;
	prctl(PR_SET_TIMERSLACK, 0); /* the default again */
}

/* Arrive for the `mine`th time, and sleep until all ranks have. Returns 0 if they have, 1 if the
 * barrier is broken, 2 if the time is up.
 */
int barrier_wait(struct gate *gate, uint32_t ranks, uint32_t mine, int64_t timeout_ns)
{
	int64_t deadline = now_ns() + timeout_ns, left;
	struct timespec most;
	uint32_t opened;

	if (__atomic_add_fetch(&gate->arrived, 1, __ATOMIC_ACQ_REL) == (int64_t)ranks * mine) {
		gate->start_ns = now_ns() + BEFORE_NS + (int64_t)ranks * BEFORE_RANK_NS;
		__atomic_add_fetch(&gate->opened, 1, __ATOMIC_RELEASE);
		futex(&gate->opened, FUTEX_WAKE, INT32_MAX, NULL);
	}
	while ((opened = __atomic_load_n(&gate->opened, __ATOMIC_ACQUIRE)) < mine) {
		left = deadline - (int64_t)now_ns();
		if (left <= 0)
			return 2;
		most = timespec_of(left);
		futex(&gate->opened, FUTEX_WAIT, opened, &most);
	}
	if (opened & BROKEN)
		return 1;
	sleep_until(gate->start_ns);
	return 0;
}

/* Release all ranks that wait, and each that comes. */
void barrier_break(struct gate *gate)
{
	__atomic_or_fetch(&gate->opened, BROKEN, __ATOMIC_RELEASE);
	futex(&gate->opened, FUTEX_WAKE, INT32_MAX, NULL);
}
