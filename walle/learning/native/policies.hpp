// Distributions of actions: their densities, and the slopes that a loss has at a policy's output.
//
// The formulas are those of walle/nets/policies.py. All work on up to LANES rows at a time; lanes
// beyond these rows hold garbage, which sums over rows must mask.

#pragma once

#include <memory>

#include "mlp.hpp"

// The columns of a round's `count` rows.
struct Rows {
  const float *obs;    // [N, O]
  const void *action;  // [N, A]: float, or long where actions are discrete
  const float *log_prob, *advantage, *target, *value;  // [N]
  const float *dist;   // [N, D] the old policy's distributions; null without a KL penalty
  long count;
};

struct Minibatch {
  const Rows &rows;
  const long *order;  // null takes the rows as they come
  long start, size;  // in the round's order

  long row(long i) const { return order ? order[i] : i; }

  // A column's entries in the rows from `first` on, at most LANES.
  Vector column(const float *of, long first, int count, long width = 1, long col = 0) const {
    float entries[LANES] = {};
    for (int i = 0; i < count; i++) entries[i] = of[row(first + i) * width + col];
    return load(entries);
  }

  // The same for an entry of discrete actions; -1 in the lanes beyond.
  IntVector choices(long first, int count, long width = 1, long col = 0) const {
    const long *of = static_cast<const long *>(rows.action);
    IntVector result = IntVector{} - 1;
    for (int i = 0; i < count; i++) result[i] = int(of[row(first + i) * width + col]);
    return result;
  }
};

// log π(a|s), the entropy, and KL(old || new) if there are old distributions.
struct Densities {
  Vector log_prob, entropy, kl;
};

constexpr double HALF_LOG_2_PI = 0.9189385332046727;

// A policy's distributions; `output` is its network's.
class Distribution {
 public:
  virtual ~Distribution() = default;

  // Parameters of the distribution itself, which lie behind the network's.
  virtual int parameters() const { return 0; }

  // Takes the values of `parameters` and clears their gradient; to be called before each shard.
  virtual void prepare(const float *) {}

  // Reads the actions of a block of rows.
  virtual void read(const Minibatch &, long, int) {}

  // At `count` rows, which begin at `first` in the round's order and at `row` in the block.
  virtual Densities densities(const Minibatch &batch, long first, int row, int count) = 0;

  // Writes the slopes at the output of the rows of the last `densities`; those along log π differ
  // from row to row, those along the negative entropy and the KL divergence do not.
  virtual void slopes(const Minibatch &batch, long first, int row, int count, Vector of_log_prob,
                      float of_entropy, float of_kl) = 0;

  // Writes the gradient of `parameters`, and 0 into their padding.
  virtual void gradient(float *) const {}
};

// The change from an old Gaussian to a new one.
struct Change {
  Vector distance;          // (μ - μ_old) / σ
  Vector slope_of_log_std;  // of the KL divergence along log σ
  Vector kl;                // KL(old || new)
};

// The change of entry `a` of an action, at `count` rows from `first` on.
inline Change change(const Minibatch &batch, long first, int count, int actions, int a, Vector mean,
                     Vector log_std, Vector inverse_std) {
  const Vector old_mean = batch.column(batch.rows.dist, first, count, 2 * actions, a);
  const Vector old = batch.column(batch.rows.dist, first, count, 2 * actions, actions + a);
  const Vector distance = (mean - old_mean) * inverse_std, ratio = exp(2.0f * (old - log_std));
  return {distance, 1.0f - ratio - distance * distance,
          log_std - old + 0.5f * (ratio + distance * distance - 1.0f)};
}

// Independent Gaussians, whose log standard deviations are parameters.
class Gaussian : public Distribution {
 public:
  Gaussian(const MLP &policy, int actions, bool noise_is_learned)
      : policy_(policy),
        noise_is_learned_(noise_is_learned),
        actions_(actions),
        width_(Panels::padded(actions)),
        action_(actions),
        inverse_std_(zeros(width_)),
        log_std_(zeros(width_)),
        log_std_slope_(zeros(width_)) {}

  int parameters() const override { return actions_; }

  void prepare(const float *parameters) override {
    log_density_ = entropy_ = 0;
    std::memset(log_std_slope_.get(), 0, sizeof(float) * width_);
    for (int a = 0; a < actions_; a++) {
      const float log_std = log_std_[a] = parameters[a];
      inverse_std_[a] = std::exp(-log_std);
      log_density_ -= log_std + HALF_LOG_2_PI;
      entropy_ += log_std + 0.5 + HALF_LOG_2_PI;
    }
  }

  void read(const Minibatch &batch, long first, int rows) override {
    action_.read(static_cast<const float *>(batch.rows.action), batch.rows.count, batch.order,
                 first, rows);
  }

  Densities densities(const Minibatch &batch, long first, int row, int count) override {
    const Panels &mean = policy_.output(), &slope = policy_.output_error();
    Vector squares[LANES] = {};
    for (int i = 0; i < count; i++)
      for (int a = 0; a < width_; a += LANES) {
        const Vector action = load(&action_.panels.at(row + i, a));
        const Vector z = (action - load(&mean.at(row + i, a))) * load(&inverse_std_[a]);
        store(&slope.at(row + i, a), z);
        squares[i] += z * z;
      }
    const Vector log_prob = float(log_density_) - 0.5f * row_sums(squares);
    Vector kl{};
    for (int a = 0; batch.rows.dist && a < actions_; a++)
      kl += change_of(batch, first, row, count, a).kl;
    return {log_prob, broadcast(float(entropy_)), kl};
  }

  void slopes(const Minibatch &batch, long first, int row, int count, Vector of_log_prob,
              float of_entropy, float of_kl) override {
    const Panels &slope = policy_.output_error();
    float factors[LANES];
    store(factors, of_log_prob);
    for (int i = 0; i < count; i++)
      for (int a = 0; a < width_; a += LANES) {
        const Vector z = load(&slope.at(row + i, a));
        store(&slope.at(row + i, a), factors[i] * z * load(&inverse_std_[a]));
        store(&log_std_slope_[a],
              load(&log_std_slope_[a]) + factors[i] * (z * z - 1.0f) - of_entropy);
      }
    for (int a = 0; batch.rows.dist && a < actions_; a++) {
      const Change c = change_of(batch, first, row, count, a);
      const Vector of_mean = of_kl * c.distance * inverse_std_[a];
      slope.set_column(row, count, a, slope.column(row, count, a) + of_mean);
      log_std_slope_[a] += of_kl * sum(only(first_lanes(count), c.slope_of_log_std));
    }
  }

  void gradient(float *to) const override {
    for (int i = 0; i < width_; i++)
      to[i] = noise_is_learned_ && i < actions_ ? log_std_slope_[i] : 0.0f;
  }

 private:
  Change change_of(const Minibatch &batch, long first, int row, int count, int a) const {
    return change(batch, first, count, actions_, a, policy_.output().column(row, count, a),
                  broadcast(log_std_[a]), broadcast(inverse_std_[a]));
  }

  const MLP &policy_;
  bool noise_is_learned_;
  int actions_, width_;
  Block action_;
  Floats inverse_std_, log_std_, log_std_slope_;  // the padding of the first is 0
  double log_density_ = 0, entropy_ = 0;          // log π at the mean, and H
};

// Independent Gaussians, whose means and log standard deviations are the output.
class StateScaleGaussian : public Distribution {
 public:
  StateScaleGaussian(const MLP &policy, int actions) : policy_(policy), actions_(actions) {}

  Densities densities(const Minibatch &batch, long first, int row, int count) override {
    Densities result{};
    for (int a = 0; a < actions_; a++) {
      const Entry x = entry(batch, first, row, count, a);
      result.log_prob -= 0.5f * x.z * x.z + x.log_std + float(HALF_LOG_2_PI);
      result.entropy += x.log_std + float(0.5 + HALF_LOG_2_PI);
      result.kl += x.change.kl;
    }
    return result;
  }

  void slopes(const Minibatch &batch, long first, int row, int count, Vector of_log_prob,
              float of_entropy, float of_kl) override {
    const Panels &slope = policy_.output_error();
    for (int a = 0; a < actions_; a++) {
      const Entry x = entry(batch, first, row, count, a);
      const Vector of_mean = of_log_prob * x.z + of_kl * x.change.distance;
      const Vector of_log_std = of_log_prob * (x.z * x.z - 1.0f) - of_entropy +
                                of_kl * x.change.slope_of_log_std;
      slope.set_column(row, count, a, of_mean * x.inverse_std);
      slope.set_column(row, count, actions_ + a, x.is_free ? of_log_std : Vector{});
    }
  }

 private:
  struct Entry {
    Vector log_std, inverse_std, z;
    IntVector is_free;  // where the bounds leave the log standard deviation alone
    Change change;
  };

  Entry entry(const Minibatch &batch, long first, int row, int count, int a) const {
    constexpr float LOG_STD_MIN = -20, LOG_STD_MAX = 2;
    const Rows &rows = batch.rows;
    const Panels &output = policy_.output();
    const Vector mean = output.column(row, count, a), raw = output.column(row, count, actions_ + a);
    Entry x{};
    x.log_std = clamp(raw, LOG_STD_MIN, LOG_STD_MAX), x.inverse_std = exp(-x.log_std);
    x.is_free = (raw >= LOG_STD_MIN) & (raw <= LOG_STD_MAX);
    const float *actions = static_cast<const float *>(rows.action);
    x.z = (batch.column(actions, first, count, actions_, a) - mean) * x.inverse_std;
    if (rows.dist)
      x.change = ::change(batch, first, count, actions_, a, mean, x.log_std, x.inverse_std);
    return x;
  }

  const MLP &policy_;
  int actions_;
};

// Independent choices. Entry a of an action is one of counts[a], whose logits are adjacent outputs;
// or, without counts, a switch: its output is the logit of 1, and that of 0 is 0.
class Categorical : public Distribution {
 public:
  Categorical(const MLP &policy, const int *counts, int entries)
      : policy_(policy), are_switches_(!counts) {
    for (int a = 0; a < entries; a++) {
      const int first = entries_.empty() ? 0 : entries_.back().end;
      entries_.push_back({first, first + (are_switches_ ? 2 : counts[a])});
    }
    const int choices = entries_.back().end;
    outputs_ = are_switches_ ? entries : choices;
    for (Floats *each : {&log_p_, &p_, &old_log_p_, &old_p_}) *each = zeros(choices * LANES);
    entropy_ = zeros(entries * LANES);
  }

  Densities densities(const Minibatch &batch, long first, int row, int count) override {
    const Panels &output = policy_.output();
    log_softmax([&](int col) { return output.column(row, count, col); }, log_p_, p_);
    if (batch.rows.dist)
      log_softmax(
          [&](int col) { return batch.column(batch.rows.dist, first, count, outputs_, col); },
          old_log_p_, old_p_);
    Densities result{};
    for (size_t a = 0; a < entries_.size(); a++) {
      const IntVector action =
          batch.choices(first, count, entries_.size(), a) + entries_[a].first;
      Vector entropy{};
      for (int k = entries_[a].first; k < entries_[a].end; k++) {
        const Vector log_p = at(log_p_, k), old_p = at(old_p_, k);
        result.log_prob += only(action == k, log_p);
        entropy -= at(p_, k) * log_p;
        if (batch.rows.dist) result.kl += old_p * (at(old_log_p_, k) - log_p);
      }
      store(&entropy_[a * LANES], entropy);
      result.entropy += entropy;
    }
    return result;
  }

  void slopes(const Minibatch &batch, long first, int row, int count, Vector of_log_prob,
              float of_entropy, float of_kl) override {
    for (size_t a = 0; a < entries_.size(); a++) {
      const IntVector action =
          batch.choices(first, count, entries_.size(), a) + entries_[a].first;
      const Vector entropy = at(entropy_, int(a)), one = broadcast(1.0f);
      for (int k = entries_[a].first; k < entries_[a].end; k++) {
        if (output_of(k) < 0) continue;
        const Vector p = at(p_, k);
        Vector slope = of_log_prob * (only(action == k, one) - p) +
                       of_entropy * p * (at(log_p_, k) + entropy);
        if (batch.rows.dist) slope += of_kl * (p - at(old_p_, k));
        policy_.output_error().set_column(row, count, output_of(k), slope);
      }
    }
  }

 private:
  struct Entry {
    int first, end;  // of its choices among those of all entries
  };

  static Vector at(const Floats &of, int i) { return load(&of[i * LANES]); }

  // The output that is the logit of a choice; -1 if that is 0.
  int output_of(int choice) const {
    return !are_switches_ ? choice : choice % 2 ? choice / 2 : -1;
  }

  // Writes the choices' log probabilities and probabilities; `logit(output)` has LANES rows.
  template <class Logit>
  void log_softmax(Logit logit, const Floats &log_p, const Floats &p) const {
    for (const Entry &entry : entries_) {
      Vector most = broadcast(-INFINITY), total{};
      for (int k = entry.first; k < entry.end; k++) {
        const Vector z = output_of(k) < 0 ? Vector{} : logit(output_of(k));
        store(&log_p[k * LANES], z);
        most = z > most ? z : most;
      }
      for (int k = entry.first; k < entry.end; k++) {
        const Vector z = at(log_p, k) - most, e = exp(z);
        store(&log_p[k * LANES], z), store(&p[k * LANES], e);
        total += e;
      }
      Vector log_total;
      for (int i = 0; i < LANES; i++) log_total[i] = std::log(total[i]);
      for (int k = entry.first; k < entry.end; k++) {
        store(&log_p[k * LANES], at(log_p, k) - log_total);
        store(&p[k * LANES], at(p, k) / total);
      }
    }
  }

  const MLP &policy_;
  bool are_switches_;
  int outputs_;
  std::vector<Entry> entries_;
  Floats log_p_, p_, old_log_p_, old_p_, entropy_;  // LANES rows of each choice, and of each entry
};

// The values of actions, Q(s, a), of which an ε-greedy policy takes the largest. In the place of
// log π they have Q of the action taken; ε is their only parameter of their own, and no gradient
// changes it.
class ActionValues : public Distribution {
 public:
  ActionValues(const MLP &policy, int choices) : policy_(policy), choices_(choices) {}

  int parameters() const override { return 1; }

  Densities densities(const Minibatch &batch, long first, int row, int count) override {
    const IntVector action = batch.choices(first, count);
    Densities result{};
    for (int k = 0; k < choices_; k++)
      result.log_prob += only(action == k, policy_.output().column(row, count, k));
    return result;
  }

  void slopes(const Minibatch &batch, long first, int row, int count, Vector of_value, float,
              float) override {
    const IntVector action = batch.choices(first, count);
    for (int k = 0; k < choices_; k++)
      policy_.output_error().set_column(row, count, k, only(action == k, of_value));
  }

  void gradient(float *to) const override { std::fill(to, to + Panels::padded(1), 0.0f); }

 private:
  const MLP &policy_;
  int choices_;
};

enum Kind { GAUSSIAN = 0, STATE_SCALE = 1, CATEGORICAL = 2, SWITCHES = 3, ACTION_VALUES = 4 };

inline std::unique_ptr<Distribution> make_distribution(int kind, const MLP &policy,
                                                       const int *counts, int actions,
                                                       bool noise_is_learned) {
  if (kind == ACTION_VALUES) return std::make_unique<ActionValues>(policy, *counts);
  if (kind == CATEGORICAL) return std::make_unique<Categorical>(policy, counts, actions);
  if (kind == SWITCHES) return std::make_unique<Categorical>(policy, nullptr, actions);
  if (kind == STATE_SCALE) return std::make_unique<StateScaleGaussian>(policy, actions);
  return std::make_unique<Gaussian>(policy, actions, noise_is_learned);
}
