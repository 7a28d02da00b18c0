/* The waiting loop of testbed/bench/barrier.py, in C because in Python one look at the other ranks
 * takes as long as a hop of a small collective. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <time.h>

/* Wait until the first `ranks` slots, `stride` numbers apart, have reached `mine`. Returns 0 if
 * they have, 1 if slot `ranks` says that the barrier is broken, 2 if the time is up.
 */
int barrier_wait(const int64_t *slots, uint32_t ranks, uint32_t stride, int64_t mine,
		 double seconds)
{
	struct timespec now;
	double deadline = 0;

	for (uint32_t rank = 0; rank < ranks; rank++) {
		while (__atomic_load_n(&slots[rank * stride], __ATOMIC_ACQUIRE) < mine) {
			if (__atomic_load_n(&slots[ranks * stride], __ATOMIC_ACQUIRE))
				return 1;
			clock_gettime(CLOCK_MONOTONIC, &now);
			if (!deadline)
				deadline = now.tv_sec + now.tv_nsec * 1e-9 + seconds;
			else if (now.tv_sec + now.tv_nsec * 1e-9 > deadline)
				return 2;
			sched_yield();
		}
	}
	return 0;
}
