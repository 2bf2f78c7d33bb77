// Updates of SAC: the critics, then the policy, the temperature and the critics' slow copies.
//
// The same stages as in walle/algos/off_policy/sac.py, whose docstrings have the equations.

#pragma once

#include "replay.hpp"

class SAC : public ActorCritic {
  static constexpr float LOG_STD_MIN = -20, LOG_STD_MAX = 2;
  static constexpr float HALF_LOG_2_PI = 0.91893853f, LOG_2 = 0.6931472f;
  static constexpr int METRICS = 5;  // of an update, in the order of SACMetrics

 public:
  SAC(const ActorCriticSettings &settings, float target_entropy)
      : ActorCritic(settings),
        target_entropy_(target_entropy),
        log_temperature_(LANES, settings.beta1),
        log_prob_(BLOCK),
        std_noise_(BLOCK * actions_),
        rows_of_least_(critics_.size()) {}

  void copy_state(float *const *fields, bool to_python) override {
    ActorCritic::copy_state(fields, to_python);
    log_temperature_.copy_state(fields + 8, to_python, [&](float *field, float *packed) {
      (to_python ? *field : *packed) = to_python ? *packed : *field;
    });
    copy_critics(fields[12], critic_target_.get(), to_python);
  }

  bool run(const float *rows, const float *noise, long count, Team *team,
           float *metrics) override {
    const long draws = long(minibatch_) * actions_;
    for (; count--; rows += minibatch_ * row_size(), noise += 2 * draws, metrics += METRICS) {
      temperature_ = std::exp(*log_temperature_.parameters());
      float critic[NUMBERS], policy[NUMBERS];
      if (!move_critics(rows, noise, team, critic)) return false;
      if (!move_policy(rows, noise + draws, team, policy)) return false;
      float slope[LANES] = {-(policy[1] + target_entropy_)};  // of -log α (log π + H̄)
      log_temperature_.step(slope, settings_.rate);
      polyak_update(critic_target_.get(), critic_state_.parameters(), critic_size(), settings_.tau);
      const float values[METRICS] = {critic[0], policy[0], critic[1], -policy[1], temperature_};
      std::copy(values, values + METRICS, metrics);
    }
    return true;
  }

 private:
  // y = r + γ c (min_k Q'_k(s', a') - α log π(a'|s')).
  void find_targets(const float *rows, const float *noise, int count) override {
    act(transition(rows).next_obs, noise, count);
    for (MLP &critic : critics_) critic.forward(pair_.panels, critic_target_.get(), count);
    for (int i = 0; i < count; i++) {
      const Transition t = transition(rows + i * row_size());
      const float soft = least_value(i) - temperature_ * log_prob_[i];
      targets_[i] = t.reward + settings_.gamma * t.continues * soft;
    }
  }

  // The slope of E[α log π(a|s) - min_k Q_k(s, a)], and the sums of the loss and of log π.
  void add_policy_gradient(const float *rows, const float *noise, int count, bool add,
                           float *to) override {
    act(rows, noise, count);
    for (MLP &critic : critics_) critic.forward(pair_.panels, critic_state_.parameters(), count);
    float loss = 0, log_probs = 0;
    const float weight = 1 / float(minibatch_);
    for (std::vector<int> &rows : rows_of_least_) rows.clear();
    for (int i = 0; i < count; i++) {
      const float least = least_value(i);
      loss += temperature_ * log_prob_[i] - least, log_probs += log_prob_[i];
      size_t k = 0;  // the first one of equal critics counts
      while (critics_[k].output().at(i, 0) != least && k + 1 < critics_.size()) k++;
      rows_of_least_[k].push_back(i);
    }
    const Panels &mean = policy_.output(), &slope = policy_.output_error();
    for (size_t k = 0; k < critics_.size(); k++) {  // a row has the slope of a single critic
      const std::vector<int> &rows = rows_of_least_[k];
      critics_[k].select(rows);
      for (size_t j = 0; j < rows.size(); j++) critics_[k].output_error().at(int(j), 0) = -weight;
      critics_[k].input_error(pair_error_.panels, int(rows.size()));
      for (size_t j = 0; j < rows.size(); j++)
        for (int a = 0; a < actions_; a++)
          slope.at(rows[j], a) = pair_error_.panels.at(int(j), critic_obs_ + a);
    }
    for (int i = 0; i < count; i++)
      for (int a = 0; a < actions_; a++) {
        const float action = action_.panels.at(i, a), raw = mean.at(i, actions_ + a);
        // The slope of log π along u, where a = tanh u, is 2 tanh u.
        const float of_u = slope.at(i, a) * (1 - action * action) +
                           2 * temperature_ * action * weight;
        const bool is_free = raw >= LOG_STD_MIN && raw <= LOG_STD_MAX;
        slope.at(i, a) = of_u;
        slope.at(i, actions_ + a) =
            is_free ? of_u * std_noise_[i * actions_ + a] - temperature_ * weight : 0.0f;
      }
    policy_.backward(obs_.panels, add, to, count);
    add_numbers(to + policy_size(), loss, log_probs, add);
  }

  // Actions tanh(μ + σ ε) at a block of observations, their log densities, and the critics' inputs.
  void act(const float *obs, const float *noise, int count) {
    read_obs(obs, count);
    policy_.forward(obs_.panels, policy_state_.parameters(), count);
    const Panels &dist = policy_.output();
    for (int i = 0; i < count; i++) {
      float log_prob = 0;
      for (int a = 0; a < actions_; a++, noise++) {
        const float log_std = clamp(dist.at(i, actions_ + a), LOG_STD_MIN, LOG_STD_MAX);
        const float std_noise = std::exp(log_std) * *noise, u = dist.at(i, a) + std_noise;
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
    write_pairs(obs, count);
  }

  float target_entropy_, temperature_ = 1;
  TrainState log_temperature_;  // in the first of LANES numbers
  std::vector<float> log_prob_, std_noise_;
  std::vector<std::vector<int>> rows_of_least_;  // of a block, for each critic
};
