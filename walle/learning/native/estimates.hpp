// Advantages and targets of a round; see OnPolicy.estimates in walle/algos/on_policy.py.

#pragma once

#include <algorithm>
#include <vector>

#include "vectors.hpp"

// T steps in L lanes; the fields of Experience in walle/algos/experience.py.
struct Round {
  const float *states;                       // [T L + M, O]
  const unsigned char *needs_final, *ended;  // [T, L], like all below
  const float *reward, *continues;
  const float *ratio;                        // null where no lag is to be corrected
  long steps, lanes, states_count;

  long rows() const { return steps * lanes; }
};

enum Correction { NONE = 0, TRUNCATED = 1, VTRACE = 2 };

struct Returns {
  float gamma, lambda;
  int correction, normalize;
};

// Where the results go, [T, L] each.
struct Estimates {
  float *value, *advantage, *target;
};

// What does not change from one estimate of a round to the next.
struct Prepared {
  std::vector<int> successor;                       // which of `states` is each step's true one
  std::vector<float> discount, decay, rho, carried;  // γ c, γ λ (1 - ended), min(1, ratio), a row

  void prepare(const Round &round, const Returns &returns) {
    const long rows = round.rows();
    successor.resize(rows), discount.resize(rows), decay.resize(rows);
    long unseen = rows;
    for (long i = 0; i < rows; i++)
      successor[i] = int(round.needs_final[i] ? unseen++ : i + round.lanes);
    for (long i = 0; i < rows; i++) discount[i] = returns.gamma * round.continues[i];
    const float decays[] = {returns.gamma * returns.lambda, 0.0f};
    for (long i = 0; i < rows; i++) decay[i] = decays[round.ended[i] != 0];
    rho.resize(round.ratio ? rows : 0);
    for (size_t i = 0; i < rho.size(); i++) rho[i] = std::min(round.ratio[i], 1.0f);
  }
};

// (A - mean) / (std + 1e-8), with a standard deviation of 0 for a single step.
inline void normalize(float *advantage, long rows) {
  double sum = 0, squares = 0;
  for (long i = 0; i < rows; i++) sum += advantage[i];
  const double mean = sum / double(rows);
  for (long i = 0; i < rows; i++) squares += (advantage[i] - mean) * (advantage[i] - mean);
  const double std = std::sqrt(squares / double(std::max(rows - 1, 1L)));
  for (long i = 0; i < rows; i++) advantage[i] = float((advantage[i] - mean) / (std + 1e-8));
}

// Generalised advantage estimates, or those of V-trace, from the values of all states.
template <bool IS_VTRACE>
inline void estimate_steps(const Round &round, Prepared &p, const float *values,
                           const Estimates &to) {
  p.carried.assign(round.lanes, 0.0f);  // vₜ₊₁ - v(sₜ₊₁) of each lane
  for (long t = round.steps - 1; t >= 0; t--) {
    const long first = t * round.lanes;
    const float *__restrict reward = round.reward + first, *__restrict v = values + first;
    const float *__restrict discount = &p.discount[first], *__restrict decay = &p.decay[first];
    const float *__restrict rho = IS_VTRACE ? &p.rho[first] : nullptr, *__restrict all = values;
    const int *__restrict next = &p.successor[first];
    float *__restrict trace = p.carried.data(), *__restrict value = to.value + first;
    float *__restrict advantage = to.advantage + first, *__restrict target = to.target + first;
    for (long i = 0; i < round.lanes; i++) {
      const float sum = reward[i] + discount[i] * all[next[i]] - v[i] + decay[i] * trace[i];
      trace[i] = IS_VTRACE ? rho[i] * sum : sum;
      value[i] = v[i];
      advantage[i] = trace[i];
      target[i] = trace[i] + v[i];
    }
  }
}

inline void estimate(const Round &round, const Returns &returns, Prepared &prepared,
                     const float *values, const Estimates &to) {
  const bool is_vtrace = round.ratio && returns.correction == VTRACE;
  (is_vtrace ? estimate_steps<true> : estimate_steps<false>)(round, prepared, values, to);
  if (returns.normalize) normalize(to.advantage, round.rows());
  if (!round.ratio || returns.correction != TRUNCATED) return;
  for (long i = 0; i < round.rows(); i++) to.advantage[i] *= prepared.rho[i];
}
