// The common part of updates from a replay buffer, and of a policy with critics and slow copies.

#pragma once

#include <algorithm>

#include "adam.hpp"
#include "shards.hpp"

// Parameters with Adam's state, the fields of a TrainState of walle/learning/adam.py.
class TrainState {
 public:
  TrainState(long size, float beta1)
      : parameters_(zeros(size)), adam_(size, beta1, 0.999) {}

  float *parameters() { return parameters_.get(); }

  // The next step's size, which falls linearly from `rate` to 0 in `steps` steps; may be infinite.
  float falling(float rate, double steps) const {
    return float(rate * std::max(0.0, 1 - double(steps_) / steps));
  }

  // Copies Python's fields to this state, or, `to_python`, this state to the fields;
  // `copy(field, packed)` does so for numbers of the parameters' shape.
  template <class Copy>
  void copy_state(float *const *fields, bool to_python, Copy copy) {
    copy(fields[0], parameters());
    copy(fields[1], adam_.mean());
    copy(fields[2], adam_.square());
    float *steps = fields[3];
    copy_numbers(steps, &steps_, 1, to_python);
  }

  // One step with a gradient times `scale`.
  void step(const float *gradient, float rate, float scale = 1.0f) {
    adam_.step(parameters(), gradient, scale, rate, 1e-8, ++steps_);
  }

 private:
  Floats parameters_;
  Adam adam_;
  float steps_ = 0;
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

// An algorithm's blocks of updates.
class ReplayUpdates {
 public:
  virtual ~ReplayUpdates() = default;

  // Copies the fields, the leaves of the algorithm's state in Python in their order, to this
  // object, or, `to_python`, the other way.
  virtual void copy_state(float *const *fields, bool to_python) = 0;

  // Takes blocks of updates on minibatches [K, B, W] with noise [K, M, B, A] each, and writes the
  // metrics of each block. Returns whether the team is whole.
  virtual bool run(const float *rows, const float *noise, long blocks, Team *team,
                   float *metrics) = 0;

  // Floats that learners exchange at most.
  long exchanged() const { return shards_.size(); }

 protected:
  static constexpr int NUMBERS = 2;  // behind a gradient: sums of its loss and of another number

  // The policy sees the first `seen` of `obs_size` numbers.
  ReplayUpdates(int minibatch, int shards, int obs_size, int seen, int actions)
      : minibatch_(minibatch),
        actions_(actions),
        obs_size_(obs_size),
        obs_(seen),
        targets_(BLOCK),
        shards_(shards, 0) {}

  // Makes room for `longest` numbers of a shard, and those behind a gradient.
  void reserve(long longest) { shards_ = Shards(shards_.count(), longest + NUMBERS); }

  // What `sum` computes, from `add(rows, noise, count, add, to)`, which writes a gradient and its
  // numbers for a block of a shard's rows, or adds them.
  template <class Add>
  auto blocks(const float *rows, const float *noise, Add add) const {
    return [=](int begin, int end, float *to) {
      for (int i = begin; i < end; i += BLOCK)
        add(rows + i * row_size(), noise + long(i) * actions_, least(BLOCK, end - i), i > begin,
            to);
    };
  }

  // The sum over the shards, rows `begin` to before `end`, of what `compute(begin, end, to)` writes.
  template <class Compute>
  const float *sum(long length, Team *team, Compute compute) {
    return shards_.sum(length, team, [&](int shard, float *to) {
      compute(minibatch_ * shard / shards_.count(), minibatch_ * (shard + 1) / shards_.count(), to);
    });
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

  // Reads the observations of a block of rows, or their successors, into `obs_`.
  void read_obs(const float *first, int count) {
    for (int i = 0; i < count; i++) obs_.read_row(i, first + i * row_size());
  }

  int minibatch_, actions_, obs_size_;
  Block obs_;
  std::vector<float> targets_;  // of a block
  Shards shards_;
};

struct ActorCriticSettings {
  const int *policy, *critic;  // widths of their layers, the inputs first
  int policy_layers, critic_layers, critics, actions;
  int obs;  // numbers of an observation; the policy sees the first, the critics the last ones
  int activation, minibatch, shards;
  int updates, draws;  // of the critics in a block; of noise in an update
  float gamma, tau, rate, beta1;
  double falls_for;  // updates until the step size is 0; may be infinite
};

class ActorCritic : public ReplayUpdates {
 public:
  void copy_state(float *const *fields, bool to_python) override {
    policy_state_.copy_state(fields, to_python, [&](float *field, float *packed) {
      copy_policy(field, packed, to_python);
    });
    critic_state_.copy_state(fields + 4, to_python, [&](float *field, float *packed) {
      copy_critics(field, packed, to_python);
    });
    if (!to_python) prepare_critics();
  }

  // A block updates the critics on each minibatch, then the policy on the last one.
  bool run(const float *rows, const float *noise, long blocks, Team *team,
           float *metrics) override {
    const long width = minibatch_ * row_size(), draw = long(minibatch_) * actions_;
    while (blocks--) {
      float critic[NUMBERS] = {}, policy[NUMBERS] = {};
      for (int k = 0; k < settings_.updates; k++, rows += width, noise += settings_.draws * draw)
        if (!move_critics(rows, noise, team, critic)) return false;
      if (!move_policy(rows - width, noise - draw, team, policy)) return false;
      for (float &number : critic) number /= float(settings_.updates);
      critic[1] /= float(critics_.size());
      metrics = end_block(critic, policy, metrics);
    }
    return true;
  }

 protected:
  explicit ActorCritic(const ActorCriticSettings &n)
      : ReplayUpdates(n.minibatch, n.shards, n.obs, n.policy[0], n.actions),
        settings_(n),
        critic_obs_(n.critic[0] - actions_),
        pair_(n.critic[0]),
        pair_error_(n.critic[0]),
        action_(actions_),
        row_of_pair_(n.critic[0]),
        policy_(n.policy, n.policy_layers, of_policy(n.activation), 0),
        critics_(make_critics(n)),
        policy_size_(policy_.end()),
        critic_size_(critics_.back().end()),
        policy_state_(policy_size_, n.beta1),
        critic_state_(critic_size_, n.beta1),
        critic_target_(zeros(critic_size_)) {
    reserve(std::max(policy_size_, critic_size_));
  }

  virtual void copy_policy(float *field, float *packed, bool to_python) const {
    policy_.copy(field, packed, to_python);
  }

  virtual void copy_critics(float *field, float *packed, bool to_python) const {
    for (const MLP &critic : critics_) field = critic.copy(field, packed, to_python);
  }

  // r + γ c Q' for a block of rows, into `targets_`.
  virtual void find_targets(const float *rows, const float *noise, int count) = 0;

  // Writes or adds the gradient of the policy's loss at a block of rows, and two numbers.
  virtual void add_policy_gradient(const float *rows, const float *noise, int count, bool add,
                                   float *to) = 0;

  // The next step's size of a state that takes one every `updates` updates.
  float rate(const TrainState &state, int updates) const {
    return state.falling(settings_.rate, settings_.falls_for / updates);
  }

  // Moves a state along its gradient on a minibatch, as after every `updates` updates. Shard by
  // shard, `compute` writes the gradient [size], `more` numbers, and sums whose means are added to
  // `numbers`. Returns the sum over the shards; null if the team broke.
  template <class Compute>
  const float *move(TrainState &state, long size, long more, int updates, Team *team,
                    float *numbers, Compute compute) {
    const float *sums = sum(size + more + NUMBERS, team, compute);
    if (!sums) return nullptr;
    for (int n = 0; n < NUMBERS; n++) numbers[n] += sums[size + more + n] / float(minibatch_);
    state.step(sums, rate(state, updates));
    return sums;
  }

  // Moves the critics towards their targets on a minibatch; adds the sum of their mean squared
  // errors, and that of their mean values, to `numbers`. Returns whether the team is whole.
  virtual bool move_critics(const float *rows, const float *noise, Team *team, float *numbers) {
    const auto add = [&](auto... x) { add_critic_gradient(x...); };
    if (!move(critic_state_, critic_size_, 0, 1, team, numbers, blocks(rows, noise, add)))
      return false;
    prepare_critics();
    return true;
  }

  // Moves the policy, then the critics' slow copies; adds the means of its numbers to `numbers`.
  // Returns whether the team is whole.
  virtual bool move_policy(const float *rows, const float *noise, Team *team, float *numbers) {
    policy_.prepare_backward(policy_state_.parameters());
    const auto add = [&](auto... x) { add_policy_gradient(x...); };
    if (!move(policy_state_, policy_size_, 0, settings_.updates, team, numbers,
              blocks(rows, noise, add)))
      return false;
    polyak_update(critic_target_.get(), critic_state_.parameters(), critic_size_, settings_.tau);
    return true;
  }

  // Writes the metrics of a block from its mean numbers; returns where they end.
  virtual float *end_block(const float *critic, const float *policy, float *metrics) = 0;

  // The critics' smallest value of a row; NaN if any of them is NaN.
  float least_value(int i) const {
    float least = critics_[0].output().at(i, 0);
    for (const MLP &critic : critics_) {
      const float value = critic.output().at(i, 0);
      if (value < least || value != value) least = value;
    }
    return least;
  }

  // Writes the rows of `to` from `first` on, which critics see: what they see of observations, which
  // begin at `obs` in a block of rows, with the actions in `action_`.
  void write_pairs(const float *obs, int count, Block &to, int first = 0) {
    for (int i = 0; i < count; i++, obs += row_size()) {
      std::copy(obs + obs_size_ - critic_obs_, obs + obs_size_, row_of_pair_.begin());
      for (int a = 0; a < actions_; a++) row_of_pair_[critic_obs_ + a] = action_.panels.at(i, a);
      to.read_row(first + i, row_of_pair_.data());
    }
  }

  // To be called for new parameters.
  virtual void prepare_critics() {
    for (MLP &critic : critics_) critic.prepare_backward(critic_state_.parameters(), 0);
  }

  ActorCriticSettings settings_;
  int critic_obs_;  // numbers of an observation that critics see
  Block pair_, pair_error_, action_;
  std::vector<float> row_of_pair_;
  MLP policy_;
  std::vector<MLP> critics_;  // their parameters lie one after the other
  long policy_size_, critic_size_;
  TrainState policy_state_, critic_state_;
  Floats critic_target_;

 private:
  void add_critic_gradient(const float *rows, const float *noise, int count, bool add, float *to) {
    find_targets(rows, noise, count);
    const float *seen = rows + obs_size_ - critic_obs_;
    for (int i = 0; i < count; i++) pair_.read_row(i, seen + i * row_size());
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
    add_numbers(to + critic_size_, squares, values, add);
  }

  static std::vector<MLP> make_critics(const ActorCriticSettings &n) {
    std::vector<MLP> critics;
    for (int k = 0; k < n.critics; k++)
      critics.emplace_back(n.critic, n.critic_layers, of_critic(n.activation),
                           k ? critics.back().end() : 0);
    return critics;
  }
};
