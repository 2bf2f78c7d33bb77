// Passes over a round's rows in minibatches: gradient steps on a policy, a critic, or both.
//
// The losses are those of PPO, A2C, PPO-KL and value functions in walle/algos/on_policy, advantages
// and targets those of OnPolicy.estimates in its base.py; the order of shards is that of
// walle/learning/step.py. walle/learning/native/passes.py calls the functions at the end.

#include <algorithm>
#include <vector>

#include "adam.hpp"
#include "policies.hpp"
#include "shards.hpp"

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
    const float change = IS_VTRACE ? rho[i] * sum : sum;
    trace[i] = change;
    advantage[i] = sum;  // V-trace weights it after it is normalised
    target[i] = change + v[i];
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

namespace {

struct Networks {
  const int *policy, *critic;  // widths of their layers, the inputs first
  int policy_layers, critic_layers;  // 0 without the network
  int activation;
  int kind;           // of the policy's distributions
  const int *counts;  // of the choices in each entry of an action, for CATEGORICAL
  int actions;        // entries of an action
  int obs;            // numbers of a row; the policy sees the first, the critic the last ones

  int policy_obs() const { return policy_layers ? policy[0] : critic[0]; }
  int critic_obs() const { return critic_layers ? critic[0] : policy[0]; }
};

// What a policy minimises, with the importance ratio ρ, all means over a minibatch:
enum Objective {
  CLIP = 0,             // -min(ρ A, clip(ρ) A) - c_h H
  POLICY_GRADIENT = 1,  // -A log π - c_h H
  KL_PENALTY = 2,       // -ρ A + β k + η max(0, k - 2 target)², where k = E[KL(old || new)]
  ACTION_VALUE = 3,     // (Q(s, a) - target)², of a policy that is its own critic
};

struct Loss {
  int objective;
  float clip, value_weight, value_clip, entropy_weight;
  float eta, kl_target, kl_limit;  // passes end before a step where the divergence exceeds the limit
  int noise_is_learned;
  Returns returns;
};

struct AdamSettings {
  double beta1, beta2, epsilon;
  double max_grad_norm;  // infinite without a bound
};

// Numbers of a minibatch, in the order of NAMES in passes.py.
enum Number { LOSS, GRAD_NORM, KL, CLIP_FRACTION, POLICY_LOSS, VALUE_LOSS, ENTROPY, NUMBERS };

class Passes {
 public:
  Passes(const Networks &n, const Loss &loss, const AdamSettings &adam, int shards)
      : loss_(loss),
        settings_(adam),
        obs_(n.policy_obs(), 0, n.obs),
        critic_obs_(n.critic_obs(), n.obs - n.critic_obs(), n.obs),
        seen_(n.policy_obs() + n.critic_obs() == 2 * n.obs ? obs_ : critic_obs_),
        policy_(n.policy, n.policy_layers,
                n.kind == ACTION_VALUES ? of_critic(n.activation) : of_policy(n.activation), 0),
        distribution_(n.policy_layers
                          ? make_distribution(n.kind, policy_, n.counts, n.actions,
                                              loss.noise_is_learned)
                          : nullptr),
        own_(distribution_ ? distribution_->parameters() : 0),
        own_at_(policy_.end()),
        critic_(n.critic, n.critic_layers, of_critic(n.activation),
                own_at_ + Panels::padded(own_)),
        has_critic_(n.critic_layers > 0),
        outputs_(has_critic_ ? 1 : n.policy[n.policy_layers]),
        size_(critic_.end()),
        shards_(shards, size_ + NUMBERS),
        parameters_(zeros(size_)),
        adam_(size_, adam.beta1, adam.beta2) {}

  const Spent &spent() const { return shards_.spent; }

  // Copies parameters and moments after so many steps here, or, without `steps`, the other way.
  void copy_state(float *vector, float *mean, float *square, const float *steps) {
    copy(vector, parameters_.get(), !steps);
    copy(mean, adam_.mean(), !steps);
    copy(square, adam_.square(), !steps);
    if (steps) steps_ = *steps;
  }

  // To be called before passes; the arrays of a round must stay until its last estimate. Returns
  // how many floats learners exchange at most: there are no more unseen successors than steps.
  long begin(const Round *round) {
    if (!round) return shards_.size();
    round_ = *round;
    prepared_.prepare(round_, loss_.returns);
    return std::max(shards_.size(), 2 * round_.rows());
  }

  // Advantages and targets by the current critic, whose values the learners divide; false if the
  // team broke.
  bool estimate(Team *team, const Estimates &to) {
    const Round &round = round_;
    const long blocks = (round.states_count + BLOCK - 1) / BLOCK;
    long block = 0, end = blocks;
    values_.resize(team ? 0 : round.states_count);
    float *values = values_.data();
    if (team) {
      team->turn = 1 - team->turn;
      values = team->rows[team->turn];
      block = team->first(blocks), end = team->end(blocks);
    }
    const double began = seconds_now();
    for (; block < end; block++) {
      const long first = block * BLOCK;
      const int count = int(std::min(round.states_count - first, long(BLOCK)));
      seen_.read(round.states, round.states_count, nullptr, first, count);
      MLP &network = has_critic_ ? critic_ : policy_;
      network.forward(seen_.panels, parameters_.get(), count);
      for (int i = 0; i < count; i++) {
        float most = network.output().at(i, 0);  // the only one of a critic
        for (int k = 1; k < outputs_; k++) most = std::max(most, network.output().at(i, k));
        values[first + i] = most;
      }
    }
    shards_.spent.divided += seconds_now() - began;
    if (team && !shards_.meet(team)) return false;
    ::estimate(round, loss_.returns, prepared_, values, to);
    return true;
  }

  // Steps on the minibatches of `order` until the KL divergence of one exceeds the limit: that step
  // is left out. Writes the numbers of each minibatch, of that one too. Returns the number of
  // steps, or -1 if the team broke.
  long run(const Rows &rows, const long *order, long minibatch, float rate, float beta, Team *team,
           float *numbers) {
    long taken = 0;
    for (long first = 0; first < rows.count; first += minibatch, numbers += NUMBERS, taken++) {
      const Minibatch batch = {rows, order, first, std::min(minibatch, rows.count - first)};
      if (!find_gradient(batch, beta, team, numbers)) return -1;
      if (numbers[KL] > loss_.kl_limit) break;
      step(numbers[GRAD_NORM], rate);
    }
    return taken;
  }

 private:
  // The gradient of a minibatch, and its numbers; false if the team broke.
  bool find_gradient(const Minibatch &batch, float beta, Team *team, float *numbers) {
    policy_.prepare_backward(parameters_.get());
    critic_.prepare_backward(parameters_.get());
    float excess = 0;
    for (;;) {
      kl_weight_ = beta + 2 * loss_.eta * excess;
      gradient_ = shards_.sum(size_ + NUMBERS, team, [&](int shard, float *to) {
        const long begin = batch.size * shard / shards_.count();
        const long end = batch.size * (shard + 1) / shards_.count();
        shard_gradient(batch, begin, end, to, to + size_);
      });
      if (!gradient_) return false;
      std::copy(gradient_ + size_, gradient_ + size_ + NUMBERS, numbers);
      // The slope of the squared excess is known only after a look at all rows. Few minibatches
      // exceed, so the first look assumes that this one does not.
      const float above = numbers[KL] - 2 * loss_.kl_target;
      if (loss_.objective != KL_PENALTY || excess > 0 || !(above > 0)) break;
      excess = above;
    }
    if (loss_.objective == KL_PENALTY) {
      const float penalty = beta * numbers[KL] + loss_.eta * excess * excess;
      numbers[POLICY_LOSS] += penalty, numbers[LOSS] += penalty;
    }
    numbers[GRAD_NORM] = std::sqrt(squares(gradient_, size_));
    return true;
  }

  void step(float norm, float rate) {
    const float scale = clamp(float(settings_.max_grad_norm) / (norm + 1e-6f), 0.0f, 1.0f);
    adam_.step(parameters_.get(), gradient_, scale, rate, settings_.epsilon, ++steps_);
  }

  // The part of some rows in the gradient and in the numbers of a minibatch. Writes every entry of
  // `gradient` exactly once: another core read its lines last, so a store can retire in the
  // background, whereas zeroing them first would stall for as long as an Adam step.
  void shard_gradient(const Minibatch &batch, long begin, long end, float *gradient,
                      float *means) {
    const Rows &rows = batch.rows;
    const float weight = 1.0f / float(batch.size);
    if (begin == end) std::memset(gradient, 0, sizeof(float) * size_);
    if (distribution_) distribution_->prepare(&parameters_[own_at_]);
    Vector sums[NUMBERS] = {};
    for (bool add = false; begin < end; begin += BLOCK, add = true) {
      const int block = int(std::min(end - begin, long(BLOCK)));
      const long first = batch.start + begin;
      obs_.read(rows.obs, rows.count, batch.order, first, block);
      if (distribution_) {
        distribution_->read(batch, first, block);
        policy_.forward(obs_.panels, parameters_.get(), block);
        for (int i = 0; i < block; i += LANES)
          add_policy_loss(batch, first + i, i, least(block - i, LANES), weight, sums);
        policy_.backward(obs_.panels, add, gradient, block);
      }
      if (has_critic_) {
        if (&seen_ != &obs_) seen_.read(rows.obs, rows.count, batch.order, first, block);
        critic_.forward(seen_.panels, parameters_.get(), block);
        for (int i = 0; i < block; i += LANES)
          add_value_loss(batch, first + i, i, least(block - i, LANES), weight, sums);
        critic_.backward(seen_.panels, add, gradient, block);
      }
    }
    if (distribution_) distribution_->gradient(gradient + own_at_);
    for (int n = 0; n < NUMBERS; n++) means[n] = sum(sums[n]) * weight;
    means[LOSS] = means[POLICY_LOSS] + loss_.value_weight * means[VALUE_LOSS] -
                  loss_.entropy_weight * means[ENTROPY];
  }

  // The objective of `count` rows, which begin at `row` of the block, and its slopes at the
  // policy's output.
  void add_policy_loss(const Minibatch &batch, long first, int row, int count, float weight,
                       Vector *numbers) {
    const IntVector there = first_lanes(count);
    const Densities now = distribution_->densities(batch, first, row, count);
    const Vector advantage = batch.column(batch.rows.advantage, first, count);
    Vector slope = -advantage * weight;
    if (loss_.objective == ACTION_VALUE) {
      const Vector target = batch.column(batch.rows.target, first, count);
      const Vector error = only(there, now.log_prob - target);
      slope = 2 * weight * error;
      numbers[VALUE_LOSS] += error * error;
    } else if (loss_.objective == POLICY_GRADIENT) {
      numbers[POLICY_LOSS] -= only(there, now.log_prob) * advantage;
    } else {
      const Vector log_ratio =
          only(there, now.log_prob - batch.column(batch.rows.log_prob, first, count));
      const IntVector is_too_large = log_ratio > LOG_LARGEST;
      const Vector ratio = exp(is_too_large ? broadcast(LOG_LARGEST) : log_ratio);
      const Vector clipped = clamp(ratio, 1 - loss_.clip, 1 + loss_.clip);
      slope = is_too_large ? Vector{} : -ratio * advantage * weight;
      if (loss_.objective == CLIP) {
        const IntVector is_clipped = clipped * advantage < ratio * advantage;  // not where NaN
        const Vector change = ratio - 1.0f, one = broadcast(1.0f);
        slope = is_clipped ? Vector{} : slope;
        numbers[KL] += change - log_ratio;
        numbers[CLIP_FRACTION] +=
            (change > loss_.clip) | (change < -loss_.clip) ? one : Vector{};
        numbers[POLICY_LOSS] -= (is_clipped ? clipped : ratio) * advantage;
      } else {
        numbers[KL] += only(there, now.kl);
        numbers[POLICY_LOSS] -= ratio * advantage;
      }
    }
    numbers[ENTROPY] += only(there, now.entropy);
    distribution_->slopes(batch, first, row, count, slope, loss_.entropy_weight * weight,
                          kl_weight_ * weight);
  }

  // The squared errors, or the larger ones of these and of the clipped values'; and their slopes.
  void add_value_loss(const Minibatch &batch, long first, int row, int count, float weight,
                      Vector *numbers) {
    const float limit = loss_.value_clip;
    const Vector target = batch.column(batch.rows.target, first, count);
    const Vector value = critic_.output().column(row, count, 0);
    Vector counted = value - target, slope = counted;
    if (limit < INFINITY) {
      const Vector old = batch.column(batch.rows.value, first, count), change = value - old;
      const Vector near_error = old + clamp(change, -limit, limit) - target;
      const IntVector is_near = counted * counted < near_error * near_error;
      const IntVector moves = (change < limit) & (change > -limit);
      slope = is_near ? (moves ? near_error : Vector{}) : counted;
      counted = is_near ? near_error : counted;
    }
    critic_.output_error().set_column(row, count, 0, 2 * loss_.value_weight * weight * slope);
    numbers[VALUE_LOSS] += counted * counted;
  }

  void copy(float *vector, float *packed, bool to_python) const {
    float *own = policy_.copy(vector, packed, to_python);
    copy_numbers(own, packed + own_at_, own_, to_python);
    critic_.copy(own, packed, to_python);
  }

  Loss loss_;
  AdamSettings settings_;
  Block obs_, critic_obs_;
  Block &seen_;  // by the critic: `obs_` if both see all
  MLP policy_;
  std::unique_ptr<Distribution> distribution_;  // null without a policy
  int own_;      // parameters of the distribution itself
  long own_at_;  // where they begin
  MLP critic_;
  bool has_critic_;
  int outputs_;  // whose largest is the value of a state
  long size_;  // of all parameters
  Shards shards_;
  const float *gradient_ = nullptr;  // of the last minibatch
  Floats parameters_;
  Adam adam_;
  double steps_ = 0;
  float kl_weight_ = 0;  // the slope of the objective along the KL divergence
  Round round_{};
  Prepared prepared_;
  std::vector<float> values_;  // of all states, without a team
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

Passes *passes_new(const Networks *networks, const Loss *loss, const AdamSettings *adam,
                   int shards) {
  return new Passes(*networks, *loss, *adam, shards);
}

void passes_delete(Passes *passes) { delete passes; }

void passes_copy(Passes *passes, float *vector, float *mean, float *square, const float *steps) {
  passes->copy_state(vector, mean, square, steps);
}

void passes_spent(const Passes *passes, Spent *to) { *to = passes->spent(); }

long passes_begin(Passes *passes, const Round *round) { return passes->begin(round); }

int passes_estimate(Passes *passes, Team *team, float *value, float *advantage, float *target) {
  [[maybe_unused]] const FlushDenormals flushed;
  return passes->estimate(team, {value, advantage, target});
}

long passes_run(Passes *passes, const Rows *rows, const long *order, long minibatch, float rate,
                float beta, Team *team, float *numbers) {
  [[maybe_unused]] const FlushDenormals flushed;
  return passes->run(*rows, order, minibatch, rate, beta, team, numbers);
}
}
#pragma GCC visibility pop
