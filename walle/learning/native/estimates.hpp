// Advantages and targets of a round; see OnPolicy.estimates in walle/algos/on_policy/base.py.

#pragma once

#include <algorithm>
#include <vector>

#include "vectors.hpp"

// T steps in L lanes; the fields of Experience in walle/algos/on_policy/experience.py.
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

// Where the results go, [T, L] each; `value` may be null.
struct Estimates {
  float *value, *advantage, *target;
};

// A step whose true successor the policy never saw: the last one of its episode, or of the round.
struct Break {
  int lane, successor;    // which of `states` is the successor
  float discount, decay;  // γ c and γ λ (1 - ended)
};

// What does not change from one estimate of a round to the next.
struct Prepared {
  std::vector<Break> breaks;  // of all steps, in their order
  std::vector<int> begin;     // which break is a step's first: [T + 1]
  std::vector<float> rho;     // min(1, ratio), [T, L]
  std::vector<float> next, discount, decay, carried;  // of the lanes at one step

  void prepare(const Round &round, const Returns &returns) {
    const float decays[] = {returns.gamma * returns.lambda, 0.0f};
    next.resize(round.lanes), carried.resize(round.lanes);
    discount.assign(round.lanes, returns.gamma), decay.assign(round.lanes, decays[0]);
    breaks.clear(), begin.clear();
    for (long t = 0, i = 0; t < round.steps; t++) {
      begin.push_back(int(breaks.size()));
      for (int lane = 0; lane < round.lanes; lane++, i++)
        if (round.needs_final[i])
          breaks.push_back({lane, int(round.rows() + long(breaks.size())),
                            returns.gamma * round.continues[i], decays[round.ended[i] != 0]});
    }
    begin.push_back(int(breaks.size()));
    rho.resize(round.ratio ? round.rows() : 0);
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

// One step of all lanes; `trace` is vₜ₊₁ - v(sₜ₊₁) of each lane, and becomes vₜ - v(sₜ).
template <bool IS_VTRACE>
inline void estimate_step(long lanes, const float *__restrict reward, const float *__restrict v,
                          const float *__restrict next, const float *__restrict discount,
                          const float *__restrict decay, const float *__restrict rho,
                          float *__restrict trace, float *__restrict advantage,
                          float *__restrict target) {
  for (long i = 0; i < lanes; i++) {
    const float sum = reward[i] + discount[i] * next[i] - v[i] + decay[i] * trace[i];
    const float found = IS_VTRACE ? rho[i] * sum : sum;
    trace[i] = found;
    advantage[i] = sum;  // V-trace weights it after it is normalised
    target[i] = found + v[i];
  }
}

// Generalised advantage estimates, or those of V-trace, from the values of all states.
template <bool IS_VTRACE>
inline void estimate_steps(const Round &round, const Returns &returns, Prepared &p,
                           const float *values, const Estimates &to) {
  const float discount = returns.gamma, decay = returns.gamma * returns.lambda;
  const long lanes = round.lanes;
  std::fill(p.carried.begin(), p.carried.end(), 0.0f);
  for (long t = round.steps - 1; t >= 0; t--) {
    const long first = t * lanes;
    const Break *begin = p.breaks.data() + p.begin[t], *end = p.breaks.data() + p.begin[t + 1];
    const float *next = values + first + lanes;
    if (begin < end) {
      std::copy(next, next + lanes, p.next.data());
      next = p.next.data();
    }
    for (const Break *b = begin; b < end; b++) {
      p.next[b->lane] = values[b->successor];
      p.discount[b->lane] = b->discount, p.decay[b->lane] = b->decay;
    }
    estimate_step<IS_VTRACE>(lanes, round.reward + first, values + first, next, p.discount.data(),
                             p.decay.data(), IS_VTRACE ? &p.rho[first] : nullptr,
                             p.carried.data(), to.advantage + first, to.target + first);
    for (const Break *b = begin; b < end; b++)
      p.discount[b->lane] = discount, p.decay[b->lane] = decay;
  }
}

inline void estimate(const Round &round, const Returns &returns, Prepared &prepared,
                     const float *values, const Estimates &to) {
  const bool is_vtrace = round.ratio && returns.correction == VTRACE;
  if (to.value) std::copy(values, values + round.rows(), to.value);
  (is_vtrace ? estimate_steps<true> : estimate_steps<false>)(round, returns, prepared, values, to);
  if (returns.normalize) normalize(to.advantage, round.rows());
  if (!round.ratio || returns.correction == NONE) return;
  for (long i = 0; i < round.rows(); i++) to.advantage[i] *= prepared.rho[i];
}
