// The shards of a minibatch, which a team of learners divides; see walle/learning/step.py and
// walle/learning/sharing.

#pragma once

#include <semaphore.h>

#include <ctime>

#include "mlp.hpp"

inline long now_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

inline double seconds_now() { return 1e-9 * double(now_ns(CLOCK_MONOTONIC)); }

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

// Seconds of a learner in work that the learners divide, and in waiting for the others.
struct Spent {
  double divided = 0, waited = 0;
};

class Shards {
 public:
  Spent spent;

  // `longest` is the largest count of numbers that a shard computes.
  Shards(int count, long longest)
      : count_(count), row_(whole_lines(longest)), own_(zeros(size())) {}

  int count() const { return count_; }
  long size() const { return row_ * (count_ + 1); }  // of all rows, and of their sum

  // The sum of the `length` numbers that `compute(shard, to)` writes for each shard, added in the
  // order of the shards, whoever computed them; null if the team broke.
  template <class Compute>
  const float *sum(long length, Team *team, Compute compute) {
    float *rows = own_.get();
    int shard = 0, end = count_;
    if (team) {
      team->turn = 1 - team->turn;
      rows = team->rows[team->turn];
      shard = team->first(count_), end = team->end(count_);
    }
    divided([&] {
      for (; shard < end; shard++) compute(shard, rows + shard * row_);
    });
    if (team && !meet(team)) return nullptr;
    if (count_ == 1) return rows;
    const long lines = whole_lines(length) / LINE;
    float *shared = rows + count_ * row_, *own = own_.get() + count_ * row_;
    if (count_ == 2) {  // adding two rows takes less than meeting again
      add(rows, 0, lines, own);
      return own;
    }
    // With more rows, each learner adds a part of the numbers on behalf of all: adding all of them on
    // every learner would cost time proportional to the number of shards.
    const long rank = team ? team->rank : 0, size = team ? team->size : 1;
    divided([&] { add(rows, lines * rank / size, lines * (rank + 1) / size, shared); });
    return !team || meet(team) ? shared : nullptr;
  }

  // Waits until every learner has arrived; returns whether all did.
  bool meet(Team *team) {
    const double began = seconds_now();
    const bool is_whole = team->meet();
    spent.waited += seconds_now() - began;
    return is_whole;
  }

 private:
  static constexpr long LINE = 16;  // floats of a line of the cache

  // Measures work that learners divide.
  template <class Work>
  void divided(Work work) {
    const double began = seconds_now();
    work();
    spent.divided += seconds_now() - began;
  }

  static long whole_lines(long length) { return (length + LINE - 1) / LINE * LINE; }

  void add(const float *rows, long line, long end, float *to) const {
    for (long i = line * LINE; i < end * LINE; i += LANES) {
      Vector total = load(rows + i);
      for (int s = 1; s < count_; s++) total += load(rows + s * row_ + i);
      store(to + i, total);
    }
  }

  int count_;
  long row_;
  Floats own_;  // rows without a team, and their sum
};
