// The shards of a minibatch, which a team of learners divides; see walle/learning/shards.py.

#pragma once

#include "mlp.hpp"
#include "team.hpp"

class Shards {
 public:
  // `longest` is the most numbers that a shard gives.
  Shards(int count, long longest)
      : count_(count), row_(whole_lines(longest)), own_(zeros(row_ * count)), sum_(zeros(row_)) {}

  int count() const { return count_; }
  long row() const { return row_; }

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
    for (; shard < end; shard++) compute(shard, rows + shard * row_);
    if (team && !team->meet()) return nullptr;
    if (count_ == 1) return rows;
    for (long i = 0; i < whole_lines(length); i += LANES) {
      Vector total = load(rows + i);
      for (int s = 1; s < count_; s++) total += load(rows + s * row_ + i);
      store(&sum_[i], total);
    }
    return sum_.get();
  }

 private:
  static long whole_lines(long length) { return (length + 15) / 16 * 16; }

  int count_;
  long row_;
  Floats own_, sum_;
};
