// Blocks of updates of DDPG and TD3: the critics on each minibatch, then the policy and all slow
// copies on the last one.
//
// The same stages as in walle/algos/off_policy/ddpg.py and td3.py, whose docstrings have the equations.

#pragma once

#include "replay.hpp"

class DDPG : public ActorCritic {
 public:
  // `scale` and `bound` are those of the noise on the targets' actions, if it is drawn.
  DDPG(const ActorCriticSettings &settings, float scale, float bound)
      : ActorCritic(settings), scale_(scale), bound_(bound), policy_target_(zeros(policy_size_)) {}

  void copy_state(float *const *fields, bool to_python) override {
    ActorCritic::copy_state(fields, to_python);
    policy_.copy(fields[8], policy_target_.get(), to_python);
    copy_critics(fields[9], critic_target_.get(), to_python);
  }

 private:
  float *end_block(const float *critic, const float *policy, float *metrics) override {
    polyak_update(policy_target_.get(), policy_state_.parameters(), policy_size_, settings_.tau);
    *metrics++ = critic[0], *metrics++ = policy[0], *metrics++ = critic[1];
    return metrics;
  }

  // y = r + γ c min_k Q'_k(s', π'(s')), the action with clipped noise if it is smoothed.
  void find_targets(const float *rows, const float *noise, int count) override {
    const float *next_obs = transition(rows).next_obs;
    act(next_obs, policy_target_.get(), count);
    for (int i = 0; i < count && settings_.draws; i++)
      for (int a = 0; a < actions_; a++, noise++) {
        float &action = action_.panels.at(i, a);
        action = clamp(action + clamp(scale_ * *noise, -bound_, bound_), -1.0f, 1.0f);
      }
    write_pairs(next_obs, count, pair_);
    for (MLP &critic : critics_) critic.forward(pair_.panels, critic_target_.get(), count);
    for (int i = 0; i < count; i++) {
      const Transition t = transition(rows + i * row_size());
      targets_[i] = t.reward + settings_.gamma * t.continues * least_value(i);
    }
  }

  // The slope of -E[Q_1(s, π(s))], and the sums of the loss and of the values.
  void add_policy_gradient(const float *rows, const float *, int count, bool add,
                           float *to) override {
    act(rows, policy_state_.parameters(), count);
    write_pairs(rows, count, pair_);
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
            pair_error_.panels.at(i, critic_obs_ + a) * (1 - action * action);
      }
    policy_.backward(obs_.panels, add, to, count);
    add_numbers(to + policy_size_, -values, values, add);
  }

  // Actions tanh μ(s) at a block of observations.
  void act(const float *obs, const float *parameters, int count) {
    read_obs(obs, count);
    policy_.forward(obs_.panels, parameters, count);
    for (int i = 0; i < count; i++)
      for (int a = 0; a < actions_; a++)
        action_.panels.at(i, a) = std::tanh(policy_.output().at(i, a));
  }

  float scale_, bound_;
  Floats policy_target_;
};
