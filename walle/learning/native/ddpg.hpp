// Blocks of updates of DDPG and TD3: the critics on each minibatch, then the policy and all slow
// copies on the last one.
//
// The same stages as in walle/algos/off_policy/ddpg.py and td3.py, whose docstrings have the equations.

#pragma once

#include "replay.hpp"

struct Smoothing {
  float scale, bound;  // of the noise on the targets' actions
};

class DDPG : public ActorCritic {
  static constexpr int METRICS = 3;  // of a block, in the order of DDPGMetrics

 public:
  DDPG(const ActorCriticSettings &settings, const Smoothing *smoothing, int updates)
      : ActorCritic(settings),
        is_smoothed_(smoothing != nullptr),
        smoothing_(smoothing ? *smoothing : Smoothing{}),
        updates_(updates),
        policy_target_(zeros(policy_size())) {}

  void load_state(float *const *fields) override {
    const int count = int(critics_.size());
    load_train_state(policy_state_, fields, &policy_, 1);
    load_train_state(critic_state_, fields + 4, critics_.data(), count);
    prepare_critics();
    pack(fields[8], policy_target_.get(), &policy_, 1);
    pack(fields[9], critic_target_.get(), critics_.data(), count);
  }

  void store_state(float *const *fields) override {
    const int count = int(critics_.size());
    store_train_state(policy_state_, fields, &policy_, 1);
    store_train_state(critic_state_, fields + 4, critics_.data(), count);
    unpack(policy_target_.get(), fields[8], &policy_, 1);
    unpack(critic_target_.get(), fields[9], critics_.data(), count);
  }

  bool run(const float *rows, const float *noise, long blocks, Team *team,
           float *metrics) override {
    const long draws = is_smoothed_ ? long(minibatch_) * actions_ : 0;
    for (; blocks--; metrics += METRICS) {
      float loss = 0, value = 0, policy[NUMBERS];
      const float *last = rows;
      for (int k = 0; k < updates_; k++, rows += minibatch_ * row_size(), noise += draws) {
        float numbers[NUMBERS];
        if (!move_critics(rows, noise, team, numbers)) return false;
        loss += numbers[0], value += numbers[1], last = rows;
      }
      if (!move_policy(last, team, policy)) return false;
      polyak_update(policy_target_.get(), policy_state_.parameters(), policy_size(), settings_.tau);
      polyak_update(critic_target_.get(), critic_state_.parameters(), critic_size(), settings_.tau);
      metrics[0] = loss / float(updates_), metrics[1] = policy[0];
      metrics[2] = value / float(updates_);
    }
    return true;
  }

 private:
  // y = r + γ c min_k Q'_k(s', π'(s')), the action with clipped noise if it is smoothed.
  void find_targets(const float *rows, const float *noise, int count) override {
    for (int i = 0; i < count; i++)
      obs_.read_row(i, transition(rows + i * row_size()).next_obs);
    act(policy_target_.get(), count);
    for (int i = 0; i < count && is_smoothed_; i++)
      for (int a = 0; a < actions_; a++, noise++) {
        const float limit = smoothing_.bound;
        float &action = action_.panels.at(i, a);
        action = clamp(action + clamp(smoothing_.scale * *noise, -limit, limit), -1.0f, 1.0f);
      }
    for (int i = 0; i < count; i++)
      write_pair(i, transition(rows + i * row_size()).next_obs, action_.panels);
    for (MLP &critic : critics_) critic.forward(pair_.panels, critic_target_.get(), count);
    for (int i = 0; i < count; i++) {
      const Transition t = transition(rows + i * row_size());
      targets_[i] = t.reward + settings_.gamma * t.continues * least_value(i);
    }
  }

  // The policy's step; writes the loss and the mean value of the policy's actions.
  bool move_policy(const float *rows, Team *team, float *numbers) {
    policy_.prepare_backward(policy_state_.parameters());
    const float *found = shards_.sum(policy_size() + NUMBERS, team, [&](int shard, float *to) {
      by_blocks(shard, [&](int first, int count, bool add) {
        add_policy_gradient(rows + first * row_size(), count, add, to);
      });
    });
    if (!found) return false;
    numbers[0] = found[policy_size()] / float(minibatch_);
    numbers[1] = found[policy_size() + 1] / float(minibatch_);
    policy_state_.step(found, settings_.rate);
    return true;
  }

  // The slope of -E[Q_1(s, π(s))].
  void add_policy_gradient(const float *rows, int count, bool add, float *to) {
    for (int i = 0; i < count; i++) obs_.read_row(i, rows + i * row_size());
    act(policy_state_.parameters(), count);
    for (int i = 0; i < count; i++) write_pair(i, rows + i * row_size(), action_.panels);
    MLP &critic = critics_[0];
    critic.forward(pair_.panels, critic_state_.parameters(), count);
    float values = 0;
    for (int i = 0; i < count; i++) {
      values += critic.output().at(i, 0);
      critic.output_error().at(i, 0) = -1 / float(minibatch_);
    }
    critic.input_error(pair_error_.panels, count);
    for (int i = 0; i < count; i++)
      for (int a = 0; a < actions_; a++) {
        const float action = action_.panels.at(i, a);
        policy_.output_error().at(i, a) =
            pair_error_.panels.at(i, obs_size_ + a) * (1 - action * action);
      }
    policy_.backward(obs_.panels, add, to, count);
    add_numbers(to + policy_size(), -values, values, add);
  }

  // Actions tanh μ(s) at the observations in `obs_`.
  void act(const float *parameters, int count) {
    policy_.forward(obs_.panels, parameters, count);
    for (int i = 0; i < count; i++)
      for (int a = 0; a < actions_; a++)
        action_.panels.at(i, a) = std::tanh(policy_.output().at(i, a));
  }

  bool is_smoothed_;
  Smoothing smoothing_;
  int updates_;
  Floats policy_target_;
};
