// What updates from a replay buffer have in common: a policy, its critics and their slow copies.

#pragma once

#include <algorithm>

#include "adam.hpp"
#include "shards.hpp"

struct Networks {
  const int *policy, *critic;  // widths of their layers, the inputs first
  int policy_layers, critic_layers;
  int activation;
  int critics, actions;
  int minibatch, shards;
};

struct Update {
  float gamma, tau, rate;
};

// Parameters with Adam's state, the fields of a TrainState of walle/learning/adam.py.
class TrainState {
 public:
  explicit TrainState(long size) : parameters_(zeros(size)), adam_(size, 0.9, 0.999) {}

  float *parameters() { return parameters_.get(); }
  float *mean() { return adam_.mean(); }
  float *square() { return adam_.square(); }
  float steps() const { return steps_; }

  // Takes over t steps: β₁ᵗ and β₂ᵗ are the products that as many calls of `step` compute.
  void set_steps(float steps) {
    if (steps == steps_) return;
    steps_ = steps;
    const float betas[] = {BETA1, BETA2};
    for (int k = 0; k < 2; k++) {
      decay_[k] = 1;
      for (float t = 0; t < steps && decay_[k] * betas[k] != decay_[k]; t++) decay_[k] *= betas[k];
    }
  }

  void step(const float *gradient, float rate) {
    decay_[0] *= BETA1, decay_[1] *= BETA2, steps_++;
    const double root = std::sqrt(1 - double(decay_[1]));
    adam_.step(parameters(), gradient, 1.0f, float(rate * root / (1 - double(decay_[0]))),
               float(1e-8 * root));
  }

 private:
  static constexpr float BETA1 = 0.9f, BETA2 = 0.999f;

  Floats parameters_;
  Adam adam_;
  float steps_ = 0, decay_[2] = {1, 1};  // t, β₁ᵗ and β₂ᵗ
};

// (1 - τ) θ' + τ θ, into θ'.
inline void polyak_update(float *slow, const float *parameters, long size, float tau) {
  for (long i = 0; i < size; i += LANES) {
    const Vector x = load(slow + i);
    store(slow + i, x + tau * (load(parameters + i) - x));
  }
}

// A row of a minibatch; see Transitions in walle/learning/replay.py.
struct Transition {
  const float *obs, *action, *next_obs;
  float reward, continues;
};

class ActorCritic {
 public:
  ActorCritic(const Networks &n, const Update &update)
      : update_(update),
        minibatch_(n.minibatch),
        actions_(n.actions),
        obs_size_(n.policy[0]),
        obs_(obs_size_),
        pair_(obs_size_ + actions_),
        pair_error_(obs_size_ + actions_),
        action_(actions_),
        row_of_pair_(obs_size_ + actions_),
        policy_(n.policy, n.policy_layers, Activation(n.activation), 0),
        critics_(make_critics(n)),
        policy_state_(policy_.end()),
        critic_state_(critics_.back().end()),
        critic_target_(zeros(critics_.back().end())),
        targets_(BLOCK),
        shards_(n.shards, std::max(critic_size(), policy_size()) + NUMBERS) {}

  virtual ~ActorCritic() = default;

  // Numbers that learners need room for to exchange what they found.
  long exchanged() const { return shards_.size(); }

 protected:
  static constexpr int NUMBERS = 2;  // behind a gradient: its loss and another mean

  long policy_size() const { return policy_.end(); }
  long critic_size() const { return critics_.back().end(); }

  // r + γ c Q' for a block of rows, into `targets_`.
  virtual void find_targets(const float *rows, const float *noise, int count) = 0;

  // Moves the critics towards their targets on a minibatch. Gives the sum of their mean squared
  // errors and their mean value. Returns whether the team is whole.
  bool move_critics(const float *rows, const float *noise, Team *team, float *numbers) {
    const float *found = shards_.sum(critic_size() + NUMBERS, team, [&](int shard, float *to) {
      by_blocks(shard, [&](int first, int count, bool add) {
        add_critic_gradient(rows + first * row_size(), noise + long(first) * actions_, count, add,
                            to);
      });
    });
    if (!found) return false;
    numbers[0] = found[critic_size()] / float(minibatch_);
    numbers[1] = found[critic_size() + 1] / float(minibatch_ * int(critics_.size()));
    critic_state_.step(found, update_.rate);
    prepare_critics();
    return true;
  }

  // To be called for new parameters.
  void prepare_critics() {
    for (MLP &critic : critics_) critic.prepare_backward(critic_state_.parameters(), 0);
  }

  void add_critic_gradient(const float *rows, const float *noise, int count, bool add, float *to) {
    find_targets(rows, noise, count);
    for (int i = 0; i < count; i++) pair_.read_row(i, rows + i * row_size());
    float squares = 0, values = 0;
    for (MLP &critic : critics_) {
      critic.forward(pair_.panels, critic_state_.parameters(), count);
      for (int i = 0; i < count; i++) {
        const float value = critic.output().at(i, 0), error = value - targets_[i];
        critic.output_error().at(i, 0) = 2 * error / float(minibatch_);
        squares += error * error, values += value;
      }
      critic.backward(pair_.panels, add, to, count);
    }
    add_numbers(to + critic_size(), squares, values, add);
  }

  // The critics' smallest value of a row; no number if one of them is none.
  float least_value(int i) const {
    float least = critics_[0].output().at(i, 0);
    for (const MLP &critic : critics_) {
      const float value = critic.output().at(i, 0);
      if (value < least || value != value) least = value;
    }
    return least;
  }

  // Calls `function(first row, rows, whether there were rows before)` for the blocks of a shard.
  template <class Function>
  void by_blocks(int shard, Function function) const {
    const int begin = minibatch_ * shard / shards_.count();
    const int end = minibatch_ * (shard + 1) / shards_.count();
    for (int first = begin; first < end; first += BLOCK)
      function(first, least(BLOCK, end - first), first > begin);
  }

  static void add_numbers(float *to, float first, float second, bool add) {
    to[0] = first + (add ? to[0] : 0.0f);
    to[1] = second + (add ? to[1] : 0.0f);
  }

  long row_size() const { return 2 * obs_size_ + actions_ + 2; }

  Transition transition(const float *row) const {
    const float *action = row + obs_size_, *next_obs = action + actions_;
    return {row, action, next_obs, next_obs[obs_size_], next_obs[obs_size_ + 1]};
  }

  // A row of `pair_`, what critics see: an observation and an action.
  void write_pair(int i, const float *obs, const Panels &actions) {
    std::copy(obs, obs + obs_size_, row_of_pair_.begin());
    for (int a = 0; a < actions_; a++) row_of_pair_[obs_size_ + a] = actions.at(i, a);
    pair_.read_row(i, row_of_pair_.data());
  }

  void load_train_state(TrainState &state, const float *const *from, const MLP *nets, int count) {
    float *const to[] = {state.parameters(), state.mean(), state.square()};
    for (int part = 0; part < 3; part++) pack(from[part], to[part], nets, count);
    state.set_steps(*from[3]);
  }

  void store_train_state(TrainState &state, float *const *to, const MLP *nets, int count) {
    const float *const from[] = {state.parameters(), state.mean(), state.square()};
    for (int part = 0; part < 3; part++) unpack(from[part], to[part], nets, count);
    *to[3] = state.steps();
  }

  static void pack(const float *from, float *to, const MLP *nets, int count) {
    for (int k = 0; k < count; k++) from = nets[k].pack(from, to);
  }

  static void unpack(const float *from, float *to, const MLP *nets, int count) {
    for (int k = 0; k < count; k++) to = nets[k].unpack(from, to);
  }

  Update update_;
  int minibatch_, actions_, obs_size_;
  Block obs_, pair_, pair_error_, action_;
  std::vector<float> row_of_pair_;
  MLP policy_;
  std::vector<MLP> critics_;  // their parameters lie one after the other
  TrainState policy_state_, critic_state_;
  Floats critic_target_;
  std::vector<float> targets_;
  Shards shards_;

 private:
  static std::vector<MLP> make_critics(const Networks &n) {
    std::vector<MLP> critics;
    for (int k = 0; k < n.critics; k++)
      critics.emplace_back(n.critic, n.critic_layers, Activation(n.activation),
                           k ? critics.back().end() : 0);
    return critics;
  }
};
