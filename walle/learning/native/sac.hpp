// Updates of SAC: the critics, then the policy, the temperature and the critics' slow copies.
//
// The same stages as in walle/algos/off_policy/sac.py, whose docstrings have the equations.

#pragma once

#include "replay.hpp"

class SAC : public ActorCritic {
  static constexpr float LOG_STD_MIN = -20, LOG_STD_MAX = 2;
  static constexpr float HALF_LOG_2_PI = 0.91893853f, LOG_2 = 0.6931472f;

 public:
  SAC(const ActorCriticSettings &settings, float target_entropy)
      : ActorCritic(settings),
        log_prob_(BLOCK),
        target_entropy_(target_entropy),
        log_temperature_(LANES, settings.beta1),
        std_noise_(BLOCK * actions_),
        rows_of_least_(critics_.size()) {}

  void copy_state(float *const *fields, bool to_python) override {
    ActorCritic::copy_state(fields, to_python);
    log_temperature_.copy_state(fields + 8, to_python, [&](float *field, float *packed) {
      copy_numbers(field, packed, 1, to_python);
    });
    copy_critics(fields[12], critic_target_.get(), to_python);
    temperature_ = std::exp(*log_temperature_.parameters());
  }

 protected:
  // Also moves the temperature.
  float *end_block(const float *critic, const float *policy, float *metrics) override {
    const float values[] = {critic[0], policy[0], critic[1], -policy[1], temperature_};
    float slope[LANES] = {-(policy[1] + target_entropy_)};  // of -log α (log π + H̄)
    log_temperature_.step(slope, rate(log_temperature_, settings_.updates));
    temperature_ = std::exp(*log_temperature_.parameters());
    return std::copy(std::begin(values), std::end(values), metrics);
  }

  // Actions tanh(μ + σ ε) for a block of the policy's outputs, from row `first` on, and their log
  // densities.
  void draw(const Panels &dist, int first, const float *noise, int count) {
    for (int i = 0; i < count; i++) {
      float log_prob = 0;
      for (int a = 0; a < actions_; a++, noise++) {
        const float log_std = clamp(dist.at(first + i, actions_ + a), LOG_STD_MIN, LOG_STD_MAX);
        const float std_noise = std::exp(log_std) * *noise;
        const float u = dist.at(first + i, a) + std_noise;
        std_noise_[i * actions_ + a] = std_noise;
        // tanh u, and softplus(-2 u) = max(-2 u, 0) + log(1 + e), by one exponential that is small
        const float e = std::exp(-2 * std::fabs(u));
        action_.panels.at(i, a) = std::copysign((1 - e) / (1 + e), u);
        const float softplus = std::fmax(-2 * u, 0.0f) + std::log1p(e);
        log_prob -= 0.5f * *noise * *noise + log_std + HALF_LOG_2_PI;
        log_prob -= 2 * (LOG_2 - u - softplus);
      }
      log_prob_[i] = log_prob;
    }
  }

  // Actions at a block of observations, their log densities, and the critics' inputs, into `to`.
  void act(const float *obs, const float *parameters, const float *noise, int count, Block &to,
           int first = 0) {
    read_obs(obs, count);
    policy_.forward(obs_.panels, parameters, count);
    draw(policy_.output(), 0, noise, count);
    write_pairs(obs, count, to, first);
  }

  // The slope of E[α log π(a|s) - min_k Q_k(s, a)] at the policy's outputs, for a block of actions
  // and critics, and the sums of the loss and of log π. `slope`, of the rows from `first` on, may
  // be in the place of `dist`. Q_k of row i is `value(k, i)`, and `set_error(k, j, i)` writes its
  // slope, times -1 / B, to row j of the critic's errors.
  template <class Value, class SetError>
  void policy_slope(const Panels &dist, int first, const Panels &slope, int count, bool add,
                    float *sums, Value value, SetError set_error) {
    float loss = 0, log_probs = 0;
    const float weight = 1 / float(minibatch_);
    for (std::vector<int> &rows : rows_of_least_) rows.clear();
    for (int i = 0; i < count; i++) {
      size_t least = 0;  // the first one of equal critics counts
      for (size_t k = 1; k < critics_.size(); k++)
        if (value(k, i) < value(least, i) || value(k, i) != value(k, i)) least = k;
      loss += temperature_ * log_prob_[i] - value(least, i), log_probs += log_prob_[i];
      rows_of_least_[least].push_back(i);
    }
    for (size_t k = 0; k < critics_.size(); k++) {  // a row has the slope of a single critic
      const std::vector<int> &rows = rows_of_least_[k];
      critics_[k].select(rows);
      for (size_t j = 0; j < rows.size(); j++) set_error(k, int(j), rows[j]);
      critics_[k].input_error(pair_error_.panels, int(rows.size()));
      for (size_t j = 0; j < rows.size(); j++)
        for (int a = 0; a < actions_; a++)
          slope.at(first + rows[j], a) = pair_error_.panels.at(int(j), critic_obs_ + a);
    }
    for (int i = 0; i < count; i++)
      for (int a = 0; a < actions_; a++) {
        const float action = action_.panels.at(i, a), raw = dist.at(first + i, actions_ + a);
        // The slope of log π along u, where a = tanh u, is 2 tanh u.
        const float of_u = slope.at(first + i, a) * (1 - action * action) +
                           2 * temperature_ * action * weight;
        const bool is_free = raw >= LOG_STD_MIN && raw <= LOG_STD_MAX;
        slope.at(first + i, a) = of_u;
        slope.at(first + i, actions_ + a) =
            is_free ? of_u * std_noise_[i * actions_ + a] - temperature_ * weight : 0.0f;
      }
    add_numbers(sums, loss, log_probs, add);
  }

  float temperature_ = 1;
  std::vector<float> log_prob_;  // of a block

 private:
  // y = r + γ c (min_k Q'_k(s', a') - α log π(a'|s')).
  void find_targets(const float *rows, const float *noise, int count) override {
    act(transition(rows).next_obs, policy_state_.parameters(), noise, count, pair_);
    for (MLP &critic : critics_) critic.forward(pair_.panels, critic_target_.get(), count);
    for (int i = 0; i < count; i++) {
      const Transition t = transition(rows + i * row_size());
      const float soft = least_value(i) - temperature_ * log_prob_[i];
      targets_[i] = t.reward + settings_.gamma * t.continues * soft;
    }
  }

  void add_policy_gradient(const float *rows, const float *noise, int count, bool add,
                           float *to) override {
    act(rows, policy_state_.parameters(), noise, count, pair_);
    for (MLP &critic : critics_) critic.forward(pair_.panels, critic_state_.parameters(), count);
    policy_slope(
        policy_.output(), 0, policy_.output_error(), count, add, to + policy_size_,
        [&](size_t k, int i) { return critics_[k].output().at(i, 0); },
        [&](size_t k, int j, int) {
          critics_[k].output_error().at(j, 0) = -1 / float(minibatch_);
        });
    policy_.backward(obs_.panels, add, to, count);
  }

  float target_entropy_;
  TrainState log_temperature_;  // in the first of LANES numbers
  std::vector<float> std_noise_;
  std::vector<std::vector<int>> rows_of_least_;  // of a block, for each critic
};
