// The part of walle/learning/sharing that a learner needs inside a library.

#pragma once

#include <semaphore.h>

#include <cerrno>
#include <ctime>

inline double seconds_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

struct Team {
  int rank, size;
  char *semaphores;   // one for each learner, `distance` bytes apart; see Barrier in sharing/shared_team.py
  long distance;
  float *rows[2];     // memory of two gathers, by turns; see SharedTeam in sharing/shared_team.py
  int turn;
  int is_whole;       // set by the call below; not if Python raised an exception in it
  void (*check)();    // called while waiting

  // The shards that this learner computes: from `first` to before `end`.
  int first(int shards) const { return int(long(shards) * rank / size); }
  int end(int shards) const { return int(long(shards) * (rank + 1) / size); }

  // Waits until every learner has arrived; returns whether all did. Learners with equal shares
  // arrive within microseconds of each other, so waiting spins at first; then it sleeps, because
  // there may be more learners than cores. Once the team is broken, nobody waits again.
  bool meet() {
    if (!is_whole) return false;
    for (int other = 0; other < size; other++)
      if (other != rank) sem_post(semaphore(other));
    for (int i = 1; i < size; i++)
      if (!spin() && !sleep()) return false;
    return true;
  }

 private:
  static constexpr long SPIN_NS = 50'000, SLEEP_NS = 50'000'000, SECOND_NS = 1'000'000'000;

  sem_t *semaphore(int of) const {
    return reinterpret_cast<sem_t *>(semaphores + of * distance);
  }

  static long now_ns(clockid_t clock) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
  }

  bool spin() const {
    const long until = now_ns(CLOCK_MONOTONIC) + SPIN_NS;
    do {
      for (int i = 0; i < 16; i++) {
        if (!sem_trywait(semaphore(rank))) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    } while (now_ns(CLOCK_MONOTONIC) < until);
    return false;
  }

  bool sleep() {
    for (;;) {
      const long until = now_ns(CLOCK_REALTIME) + SLEEP_NS;
      const timespec at = {until / SECOND_NS, until % SECOND_NS};
      if (!sem_timedwait(semaphore(rank), &at)) return true;
      is_whole = 0;
      check();  // a signal ends the sleep too, and Python handles it here
      if (!is_whole) return false;
    }
  }
};
