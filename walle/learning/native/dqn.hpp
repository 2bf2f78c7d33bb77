// Updates of DQN: the action values on each minibatch, then their slow copy where that is due.
//
// The loss, the target and the step size are those of walle/algos/off_policy/dqn.py.

#pragma once

#include "replay.hpp"

struct ActionValues {
  const int *widths;  // of the network's layers, the inputs first
  int layers, activation, minibatch, shards;
  float gamma, tau, rate, beta1, max_grad_norm;  // the last is infinite without a bound
  double falls_for;                       // updates until the step size is 0; may be infinite
  int is_double, target_interval;
};

class DQN : public ReplayUpdates {
 public:
  explicit DQN(const ActionValues &n)
      : ReplayUpdates(n.minibatch, n.shards, n.widths[0], n.widths[0], 1),
        settings_(n),
        choices_(n.widths[n.layers]),
        values_(n.widths, n.layers, of_critic(n.activation), 0),
        state_(values_.end(), n.beta1),
        target_(zeros(values_.end())),
        best_(BLOCK) {
    reserve(values_.end());
  }

  void copy_state(float *const *fields, bool to_python) override {
    state_.copy_state(fields, to_python, [&](float *field, float *packed) {
      values_.copy(field, packed, to_python);
    });
    values_.copy(fields[4], target_.get(), to_python);
    if (to_python)
      std::memcpy(fields[5], &updates_, sizeof updates_);
    else
      std::memcpy(&updates_, fields[5], sizeof updates_);
  }

  bool run(const float *rows, const float *noise, long count, Team *team,
           float *metrics) override {
    const ActionValues &s = settings_;
    const long size = values_.end();
    for (; count--; rows += minibatch_ * row_size(), metrics += NUMBERS) {
      values_.prepare_backward(state_.parameters());
      const auto add = [&](auto... x) { add_gradient(x...); };
      const float *sums = sum(size + NUMBERS, team, blocks(rows, noise, add));
      if (!sums) return false;
      for (int n = 0; n < NUMBERS; n++) metrics[n] = sums[size + n] / float(minibatch_);
      const float norm = std::sqrt(squares(sums, size));
      state_.step(sums, state_.falling(s.rate, s.falls_for),
                  clamp(s.max_grad_norm / (norm + 1e-6f), 0.0f, 1.0f));
      if (++updates_ % s.target_interval == 0)
        polyak_update(target_.get(), state_.parameters(), size, s.tau);
    }
    return true;
  }

 private:
  // y = r + γ c max_a Q'(s', a), or, double, r + γ c Q'(s', argmax_a Q(s', a)), into `targets_`.
  void find_targets(const float *rows, int count) {
    read_obs(transition(rows).next_obs, count);
    if (settings_.is_double) {
      values_.forward(obs_.panels, state_.parameters(), count);
      for (int i = 0; i < count; i++) best_[i] = best_choice(i);
    }
    values_.forward(obs_.panels, target_.get(), count);
    for (int i = 0; i < count; i++) {
      const Transition t = transition(rows + i * row_size());
      const int choice = settings_.is_double ? best_[i] : best_choice(i);
      targets_[i] = t.reward + settings_.gamma * t.continues * values_.output().at(i, choice);
    }
  }

  // The first choice of the largest value in a row of the output; a NaN counts as the largest.
  int best_choice(int row) const {
    int best = 0;
    for (int k = 1; k < choices_; k++) {
      const float value = values_.output().at(row, k), most = values_.output().at(row, best);
      if (value > most || (value != value && most == most)) best = k;
    }
    return best;
  }

  // The slope of the Huber loss of the chosen actions' values, and the sums of both.
  void add_gradient(const float *rows, const float *, int count, bool add, float *to) {
    find_targets(rows, count);
    read_obs(rows, count);
    values_.forward(obs_.panels, state_.parameters(), count);
    const Panels &error_of = values_.output_error();
    apply(error_of, error_of, count, [](Vector, Vector) { return Vector{}; });
    float losses = 0, values = 0;
    for (int i = 0; i < count; i++) {
      const int choice = int(*transition(rows + i * row_size()).action);
      const float value = values_.output().at(i, choice), error = value - targets_[i];
      const float slope = clamp(error, -1.0f, 1.0f);
      error_of.at(i, choice) = slope / float(minibatch_);
      losses += slope * (error - 0.5f * slope), values += value;
    }
    values_.backward(obs_.panels, add, to, count);
    add_numbers(to + values_.end(), losses, values, add);
  }

  ActionValues settings_;
  int choices_;
  MLP values_;
  TrainState state_;
  Floats target_;
  std::vector<int> best_;  // of a block, the actions that the learning network chooses
  long updates_ = 0;
};
