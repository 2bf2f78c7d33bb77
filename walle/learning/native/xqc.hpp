// Blocks of updates of XQC: the critics and their slow copies on each minibatch, then the policy
// and the temperature on the last one.
//
// The same stages as in walle/algos/off_policy/xqc.py, whose docstrings have the equations.

#pragma once

#include "normed.hpp"
#include "sac.hpp"

// Distributions over values at even distances within ±bound. One has `stride` numbers, which are
// zero behind the last atom's.
class Atoms {
 public:
  Atoms(int count, float bound)
      : stride((count + LANES - 1) / LANES * LANES),
        count_(count),
        bound_(bound),
        distance_(2 * bound / float(count - 1)),
        last_lanes_(first_lanes((count - 1) % LANES + 1)),
        values_(zeros(stride)) {
    for (int i = 0; i < count; i++) values_[i] = float(i) * distance_ - bound;
  }

  const int stride;

  Vector values(int i) const { return load(&values_[i]); }

  // Writes the distribution of a row of logits, and log Σ exp of these; returns the mean.
  float softmax(const Panels &logits, int row, float *p, float &log_sum) const {
    const auto lanes = [&](int i) { return i + LANES < stride ? ~IntVector{} : last_lanes_; };
    Vector top = broadcast(-INFINITY), total{}, mean{};
    for (int i = 0; i < stride; i += LANES) {
      const Vector x = load(&logits.at(row, i));
      top = (x > top) & lanes(i) ? x : top;
    }
    const float largest = maximum(top);
    for (int i = 0; i < stride; i += LANES) {
      const Vector e = only(lanes(i), exp(load(&logits.at(row, i)) - largest));
      store(p + i, e);
      total += e, mean += e * values(i);
    }
    const float whole = sum(total), share = 1 / whole;
    for (int i = 0; i < stride; i += LANES) store(p + i, load(p + i) * share);
    log_sum = largest + std::log(whole);
    return sum(mean) * share;
  }

  // Writes the distribution of shift + slope x, where x has `p`, projected onto the atoms.
  void project(const float *p, float shift, float slope, float *to) const {
    std::fill(to, to + stride, 0.0f);
    for (int i = 0; i < count_; i++) {
      const float y = clamp(shift + slope * values_[i], -bound_, bound_);
      const float place = (y + bound_) / distance_;
      const int below = place > 0 ? least(int(place), count_ - 2) : 0;  // also of NaN
      const float above = p[i] * (place - float(below));
      to[below] += p[i] - above, to[below + 1] += above;
    }
  }

 private:
  int count_;
  float bound_, distance_;
  IntVector last_lanes_;
  Floats values_;
};

class XQC : public SAC {
 public:
  XQC(const ActorCriticSettings &n, float target_entropy, float bound)
      : SAC(n, target_entropy),
        longest_shard_((n.minibatch + n.shards - 1) / n.shards),
        atoms_(n.critic[n.critic_layers], bound),
        policy_net_(1, n.policy, n.policy_layers, Activation(n.activation), longest_shard_),
        critic_net_(n.critics, n.critic, n.critic_layers, Activation(n.activation),
                    2 * longest_shard_),
        policy_moments_(zeros(policy_net_.moments_size())),
        critic_moments_(zeros(critic_net_.moments_size())),
        folded_policy_(zeros(policy_.end())),
        folded_critics_(zeros(critics_.back().end())),
        p_(atoms_.stride),
        target_p_(longest_shard_ * atoms_.stride),
        block_p_(n.critics * BLOCK * atoms_.stride),
        means_(std::max(longest_shard_, n.critics * BLOCK)),
        soft_rewards_(longest_shard_) {
    policy_size_ = policy_net_.size(), critic_size_ = critic_net_.size();
    policy_state_ = {policy_size_, n.beta1}, critic_state_ = {critic_size_, n.beta1};
    critic_target_ = zeros(critic_size_);
    reserve(std::max(policy_size_ + policy_net_.moments_size(),
                     critic_size_ + critic_net_.moments_size()));
  }

  void copy_state(float *const *fields, bool to_python) override {
    SAC::copy_state(fields, to_python);
    policy_net_.copy_moments(fields[13], policy_moments_.get(), to_python);
    critic_net_.copy_moments(fields[14], critic_moments_.get(), to_python);
    if (!to_python) fold_policy();
  }

 private:
  void copy_policy(float *field, float *packed, bool to_python) const override {
    policy_net_.copy(field, packed, to_python);
  }

  void copy_critics(float *field, float *packed, bool to_python) const override {
    critic_net_.copy(field, packed, to_python);
  }

  // The policy learns from critics with running moments.
  void prepare_critics() override {
    critic_net_.fold(critic_state_.parameters(), critic_moments_.get(), critics_.data(),
                     folded_critics_.get());
    for (MLP &critic : critics_) critic.prepare_backward(folded_critics_.get(), 0);
  }

  void fold_policy() {
    policy_net_.fold(policy_state_.parameters(), policy_moments_.get(), &policy_,
                     folded_policy_.get());
  }

  bool move_critics(const float *rows, const float *noise, Team *team, float *numbers) override {
    const auto compute = [&](auto... x) { critic_gradient(rows, noise, x...); };
    if (!move_normed(critic_net_, critic_state_, critic_moments_, 1, team, numbers, compute))
      return false;
    polyak_update(critic_target_.get(), critic_state_.parameters(), critic_size_, settings_.tau);
    return true;
  }

  bool move_policy(const float *rows, const float *noise, Team *team, float *numbers) override {
    prepare_critics();
    const auto compute = [&](auto... x) { policy_gradient(rows, noise, x...); };
    if (!move_normed(policy_net_, policy_state_, policy_moments_, settings_.updates, team, numbers,
                     compute))
      return false;
    fold_policy();
    return true;
  }

  // `move` for normalised networks, whose running moments move too.
  template <class Compute>
  bool move_normed(const NormedMLPs &nets, TrainState &state, const Floats &moments, int updates,
                   Team *team, float *numbers, Compute compute) {
    const long size = nets.size(), more = nets.moments_size();
    const float *sums = move(state, size, more, updates, team, numbers, compute);
    if (!sums) return false;
    nets.project(state.parameters());
    polyak_update(moments.get(), sums + size, more, 0.01f);
    return true;
  }

  // Writes the gradient of the critics' loss on a shard, the moments, and the sums of the loss
  // and of the values. The rows (s, a) precede (s', a').
  void critic_gradient(const float *rows, const float *noise, int begin, int end, float *to) {
    const int count = end - begin;
    rows += begin * row_size(), noise += long(begin) * actions_;
    for (int i = 0; i < count; i++)
      critic_net_.input().read_row(i, rows + i * row_size() + obs_size_ - critic_obs_);
    for (int i = 0; i < count; i += BLOCK) {
      const int block = least(BLOCK, count - i);
      act(transition(rows + i * row_size()).next_obs, folded_policy_.get(),
          noise + long(i) * actions_, block, critic_net_.input(), count + i);
      for (int j = 0; j < block; j++) {
        const Transition t = transition(rows + (i + j) * row_size());
        soft_rewards_[i + j] =
            t.reward - settings_.gamma * t.continues * temperature_ * log_prob_[j];
      }
    }
    critic_net_.normalize_input(2 * count);
    find_target(rows, count);
    float loss = 0, values = 0, log_sum;
    for (int k = 0; k < settings_.critics; k++) {
      critic_net_.forward(k, critic_state_.parameters(), 2 * count, 0, count);
      for (int i = 0; i < count; i++) {
        values += atoms_.softmax(critic_net_.output(), i, p_.data(), log_sum);
        Vector product{};
        for (int v = 0; v < atoms_.stride; v += LANES) {
          float *logits = &critic_net_.output().at(i, v);
          const Vector target = load(&target_p_[i * atoms_.stride + v]);
          product += target * load(logits);
          store(logits, (load(&p_[v]) - target) / float(minibatch_));
        }
        loss += log_sum - ::sum(product);
      }
      const float share = float(count) / float(minibatch_);
      critic_net_.backward(k, critic_state_.parameters(), 2 * count, count, share, to);
    }
    add_numbers(to + critic_size_ + critic_net_.moments_size(), loss, values, false);
  }

  // Writes the target's distributions for a shard to `target_p_`.
  void find_target(const float *rows, int count) {
    float log_sum;
    for (int k = 0; k < settings_.critics; k++) {
      critic_net_.forward(k, critic_target_.get(), 2 * count, count, 2 * count);
      for (int i = 0; i < count; i++) {
        const float mean = atoms_.softmax(critic_net_.output(), count + i, p_.data(), log_sum);
        if (k && !(mean < means_[i])) continue;
        means_[i] = mean;
        std::copy(p_.begin(), p_.end(), &target_p_[i * atoms_.stride]);
      }
    }
    for (int i = 0; i < count; i++) {
      float *target = &target_p_[i * atoms_.stride];
      std::copy(target, target + atoms_.stride, p_.begin());
      const float slope = settings_.gamma * transition(rows + i * row_size()).continues;
      atoms_.project(p_.data(), soft_rewards_[i], slope, target);
    }
  }

  // Writes the gradient of the policy's loss on a shard, the moments, and the sums of the loss
  // and of log π.
  void policy_gradient(const float *rows, const float *noise, int begin, int end, float *to) {
    const int count = end - begin;
    rows += begin * row_size(), noise += long(begin) * actions_;
    for (int i = 0; i < count; i++) policy_net_.input().read_row(i, rows + i * row_size());
    policy_net_.normalize_input(count);
    policy_net_.forward(0, policy_state_.parameters(), count, 0, count);
    const Panels &dist = policy_net_.output();
    const auto p = [&](size_t k, int j) { return &block_p_[(k * BLOCK + j) * atoms_.stride]; };
    const auto mean = [&](size_t k, int j) -> float & { return means_[k * BLOCK + j]; };
    float *numbers = to + policy_size_ + policy_net_.moments_size(), log_sum;
    for (int i = 0; i < count; i += BLOCK) {
      const int block = least(BLOCK, count - i);
      draw(dist, i, noise + long(i) * actions_, block);
      write_pairs(rows + i * row_size(), block, pair_);
      for (size_t k = 0; k < critics_.size(); k++) {
        critics_[k].forward(pair_.panels, folded_critics_.get(), block);
        for (int j = 0; j < block; j++)
          mean(k, j) = atoms_.softmax(critics_[k].output(), j, p(k, j), log_sum);
      }
      policy_slope(dist, i, dist, block, i > 0, numbers, mean, [&](size_t k, int row, int j) {
        for (int v = 0; v < atoms_.stride; v += LANES)
          store(&critics_[k].output_error().at(row, v),
                load(p(k, j) + v) * (mean(k, j) - atoms_.values(v)) / float(minibatch_));
      });
    }
    const float share = float(count) / float(minibatch_);
    policy_net_.backward(0, policy_state_.parameters(), count, count, share, to);
  }

  int longest_shard_;  // in rows
  Atoms atoms_;
  NormedMLPs policy_net_, critic_net_;
  Floats policy_moments_, critic_moments_;  // running
  Floats folded_policy_, folded_critics_;         // of `policy_` and `critics_`
  std::vector<float> p_, target_p_, block_p_;     // of a row; a shard; a block, for each critic
  std::vector<float> means_, soft_rewards_;
};
