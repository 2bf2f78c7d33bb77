// Passes of PPO over a round, in minibatches, for fully connected policies of Gaussian actions.
//
// The loss is that of walle/algos/on_policy/ppo.py, the order of shards that of walle/learning/shards.py.
// walle/learning/native/ppo_epochs.py calls the functions at the end.

#include <algorithm>

#include "adam.hpp"
#include "estimates.hpp"
#include "shards.hpp"

namespace {

struct Networks {
  const int *policy, *critic;  // widths of their layers, the inputs first
  int policy_layers, critic_layers;
  int activation;
  int copies;  // of the log standard deviations, whose sum they are
};

struct Loss {
  float clip, value_weight, value_clip, entropy_weight;
  int noise_is_learned;
};

struct AdamSettings {
  double beta1, beta2, epsilon;
  double max_grad_norm;  // infinite without a bound
};

// What a minibatch has of each of `count` rows.
struct Rows {
  const float *obs, *action, *log_prob, *advantage, *target, *value;
  long count;
};

// The numbers of a minibatch, in the order of ppo_epochs.NAMES.
enum Number { LOSS, GRAD_NORM, KL, CLIP_FRACTION, POLICY_LOSS, VALUE_LOSS, ENTROPY, NUMBERS };

constexpr double HALF_LOG_2_PI = 0.9189385332046727;

class PPO {
 public:
  PPO(const Networks &networks, const Loss &loss, const AdamSettings &adam, int shards)
      : loss_(loss),
        settings_(adam),
        copies_(networks.copies),
        actions_(networks.policy[networks.policy_layers]),
        obs_(networks.policy[0]),
        action_(actions_),
        policy_(networks.policy, networks.policy_layers, Activation(networks.activation), 0),
        critic_(networks.critic, networks.critic_layers, Activation(networks.activation),
                policy_.end() + Panels::padded(copies_ * actions_)),
        log_std_at_(policy_.end()),
        critic_at_(log_std_at_ + Panels::padded(copies_ * actions_)),
        size_(critic_.end()),
        shards_(shards, size_ + NUMBERS),
        parameters_(zeros(size_)),
        adam_(size_, adam.beta1, adam.beta2),
        inverse_std_(zeros(Panels::padded(actions_))),
        log_std_slope_(zeros(Panels::padded(actions_))) {}

  // Numbers that learners need room for to exchange what they found in a round.
  long exchanged(long states) const { return std::max(shards_.size(), states); }

  const Spent &spent() const { return shards_.spent; }

  void load_state(const float *vector, const float *mean, const float *square, float steps) {
    pack(vector, parameters_.get());
    pack(mean, adam_.mean());
    pack(square, adam_.square());
    steps_ = steps;
  }

  void store_state(float *vector, float *mean, float *square) {
    unpack(parameters_.get(), vector);
    unpack(adam_.mean(), mean);
    unpack(adam_.square(), square);
  }

  // To be called once for a round, whose arrays must stay until its last estimate.
  void begin_round(const Round &round, const Returns &returns) {
    round_ = round, returns_ = returns;
    prepared_.prepare(round, returns);
  }

  // Advantages and targets by today's critic, whose values the learners divide; false if the team
  // broke.
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
      obs_.read(round.states, round.states_count, nullptr, first, count);
      critic_.forward(obs_.panels, parameters_.get(), count);
      for (int i = 0; i < count; i++) values[first + i] = critic_.output().at(i, 0);
    }
    shards_.spent.divided += seconds_now() - began;
    if (team && !shards_.meet(team)) return false;
    ::estimate(round, returns_, prepared_, values, to);
    return true;
  }

  // Steps on the minibatches of `order`, until the KL divergence of one is above `kl_limit`: that
  // one's step is left out. Writes the numbers of each minibatch, of that one too. Returns how many
  // steps there were, or -1 if the team broke.
  long epoch(const Rows &rows, const long *order, long minibatch, float rate, float kl_limit,
             Team *team, float *numbers) {
    long taken = 0;
    for (long first = 0; first < rows.count; first += minibatch, numbers += NUMBERS, taken++) {
      const Minibatch batch = {rows, order, first, std::min(minibatch, rows.count - first)};
      if (!find(batch, team, numbers)) return -1;
      if (numbers[KL] > kl_limit) break;
      step(numbers[GRAD_NORM], rate);
    }
    return taken;
  }

 private:
  struct Minibatch {
    const Rows &rows;
    const long *order;
    long first, size;
  };

  // The gradient of a minibatch, and its numbers; false if the team broke.
  bool find(const Minibatch &batch, Team *team, float *numbers) {
    prepare();
    found_ = shards_.sum(size_ + NUMBERS, team, [&](int shard, float *to) {
      const long begin = batch.size * shard / shards_.count();
      const long end = batch.size * (shard + 1) / shards_.count();
      shard_gradient(batch, begin, end, to, to + size_);
    });
    if (!found_) return false;
    std::copy(found_ + size_, found_ + size_ + NUMBERS, numbers);
    numbers[GRAD_NORM] = std::sqrt(squares(found_, size_));
    return true;
  }

  void step(float norm, float rate) {
    const AdamSettings &s = settings_;
    const double root = std::sqrt(1 - std::pow(s.beta2, ++steps_));
    const double corrected = rate * root / (1 - std::pow(s.beta1, steps_));
    const float scale = clamp(float(s.max_grad_norm) / (norm + 1e-6f), 0.0f, 1.0f);
    adam_.step(parameters_.get(), found_, scale, float(corrected), float(s.epsilon * root));
  }

  // What all rows have in common.
  void prepare() {
    const float *parameters = parameters_.get();
    critic_.prepare_backward(parameters);
    policy_.prepare_backward(parameters);
    log_density_ = entropy_ = 0;
    for (int a = 0; a < actions_; a++) {
      float log_std = 0;
      for (int k = 0; k < copies_; k++) log_std += parameters[log_std_at_ + k * actions_ + a];
      inverse_std_[a] = std::exp(-log_std);
      log_density_ -= log_std + HALF_LOG_2_PI;
      entropy_ += log_std + 0.5 + HALF_LOG_2_PI;
    }
  }

  // The part of some rows in the gradient and in the numbers of a minibatch. Writes every entry of
  // `gradient` exactly once: another core read its lines last, so a store can retire in the
  // background, whereas zeroing them first would stall for as long as an Adam step.
  void shard_gradient(const Minibatch &batch, long begin, long end, float *gradient,
                      float *means) {
    const Rows &rows = batch.rows;
    const float weight = 1.0f / float(batch.size);
    if (begin == end) std::memset(gradient, 0, sizeof(float) * size_);
    std::memset(log_std_slope_.get(), 0, sizeof(float) * Panels::padded(actions_));
    Vector sums[NUMBERS] = {};
    for (bool add = false; begin < end; begin += BLOCK, add = true) {
      const int block = int(std::min(end - begin, long(BLOCK)));
      const long first = batch.first + begin;
      obs_.read(rows.obs, rows.count, batch.order, first, block);
      prefetch(batch, first, block);
      action_.read(rows.action, rows.count, batch.order, first, block);
      policy_.forward(obs_.panels, parameters_.get(), block);
      for (int i = 0; i < block; i += LANES)
        add_policy_loss(batch, first + i, i, least(block - i, LANES), weight, sums);
      policy_.backward(obs_.panels, add, gradient, block);
      critic_.forward(obs_.panels, parameters_.get(), block);
      for (int i = 0; i < block; i += LANES)
        add_value_loss(batch, first + i, i, least(block - i, LANES), weight, sums);
      critic_.backward(obs_.panels, add, gradient, block);
    }
    for (int i = 0; i < Panels::padded(copies_ * actions_); i++)
      gradient[log_std_at_ + i] =
          loss_.noise_is_learned && i < copies_ * actions_ ? log_std_slope_[i % actions_] : 0.0f;
    for (int n = 0; n < NUMBERS; n++) means[n] = sum(sums[n]) * weight;
    means[LOSS] = means[POLICY_LOSS] + loss_.value_weight * means[VALUE_LOSS] -
                  loss_.entropy_weight * means[ENTROPY];
  }

  // Asks for what the losses of a block read: rows in a random order are not in the cache.
  static void prefetch(const Minibatch &batch, long first, int block) {
    const Rows &rows = batch.rows;
    if (!batch.order) return;
    for (int i = 0; i < block; i++) {
      const long row = batch.order[first + i];
      for (const float *column : {rows.log_prob, rows.advantage, rows.target, rows.value})
        __builtin_prefetch(column + row);
    }
  }

  // A column's numbers in the rows from `first` on, at most LANES.
  static Vector column(const Minibatch &batch, const float *of, long first, int count) {
    float found[LANES] = {};
    for (int i = 0; i < count; i++)
      found[i] = of[batch.order ? batch.order[first + i] : first + i];
    return load(found);
  }

  // -min(ρ A, clip(ρ) A) - c_h H of `count` rows, which begin at `row` of the block, and its slopes
  // at the means and the log deviations.
  void add_policy_loss(const Minibatch &batch, long first, int row, int count, float weight,
                       Vector *numbers) {
    const Panels &mean = policy_.output(), &slope = policy_.output_error();
    const int width = Panels::padded(actions_);
    Vector squares[LANES] = {};
    for (int i = 0; i < count; i++)
      for (int a = 0; a < width; a += LANES) {
        const Vector action = load(&action_.panels.at(row + i, a));
        const Vector z = (action - load(&mean.at(row + i, a))) * load(&inverse_std_[a]);
        store(&slope.at(row + i, a), z);
        squares[i] += z * z;
      }
    const IntVector there = first_lanes(count);
    const Vector log_prob = float(log_density_) - 0.5f * row_sums(squares);
    const Vector log_ratio =
        only(there, log_prob - column(batch, batch.rows.log_prob, first, count));
    const Vector advantage = column(batch, batch.rows.advantage, first, count);
    const Vector ratio = exp(log_ratio), clipped = clamp(ratio, 1 - loss_.clip, 1 + loss_.clip);
    const IntVector is_clipped = clipped * advantage < ratio * advantage;  // no number is not
    float log_prob_slope[LANES];
    store(log_prob_slope, is_clipped ? Vector{} : -ratio * advantage * weight);
    for (int i = 0; i < count; i++)
      for (int a = 0; a < width; a += LANES) {
        const Vector z = load(&slope.at(row + i, a));
        store(&slope.at(row + i, a), log_prob_slope[i] * z * load(&inverse_std_[a]));
        store(&log_std_slope_[a], load(&log_std_slope_[a]) + log_prob_slope[i] * (z * z - 1.0f) -
                                      loss_.entropy_weight * weight);
      }
    const Vector change = ratio - 1.0f, one = broadcast(1.0f);
    numbers[KL] += change - log_ratio;
    numbers[CLIP_FRACTION] += (change > loss_.clip) | (change < -loss_.clip) ? one : Vector{};
    numbers[POLICY_LOSS] -= (is_clipped ? clipped : ratio) * advantage;
    numbers[ENTROPY] += only(there, broadcast(float(entropy_)));
  }

  // The squared errors, or the larger one of these and of the clipped values'; and their slopes.
  void add_value_loss(const Minibatch &batch, long first, int row, int count, float weight,
                      Vector *numbers) {
    const float limit = loss_.value_clip;
    const Vector target = column(batch, batch.rows.target, first, count);
    float values[LANES] = {}, slopes[LANES];
    for (int i = 0; i < count; i++) values[i] = critic_.output().at(row + i, 0);
    const Vector value = load(values);
    Vector counted = value - target, slope = counted;
    if (limit < INFINITY) {
      const Vector old = column(batch, batch.rows.value, first, count), change = value - old;
      const Vector near_error = old + clamp(change, -limit, limit) - target;
      const IntVector is_near = counted * counted < near_error * near_error;
      const IntVector moves = (change < limit) & (change > -limit);
      slope = is_near ? (moves ? near_error : Vector{}) : counted;
      counted = is_near ? near_error : counted;
    }
    store(slopes, 2 * loss_.value_weight * weight * slope);
    for (int i = 0; i < count; i++) critic_.output_error().at(row + i, 0) = slopes[i];
    numbers[VALUE_LOSS] += counted * counted;
  }

  void pack(const float *vector, float *packed) const {
    const float *log_std = policy_.pack(vector, packed);
    std::copy(log_std, log_std + copies_ * actions_, packed + log_std_at_);
    critic_.pack(log_std + copies_ * actions_, packed);
  }

  void unpack(const float *packed, float *vector) const {
    float *log_std = policy_.unpack(packed, vector);
    const float *from = packed + log_std_at_;
    critic_.unpack(packed, std::copy(from, from + copies_ * actions_, log_std));
  }

  Loss loss_;
  AdamSettings settings_;
  int copies_, actions_;
  Block obs_, action_;
  MLP policy_, critic_;
  long log_std_at_, critic_at_, size_;  // where parts of the parameters begin, and where all end
  Shards shards_;                 // of a minibatch
  const float *found_ = nullptr;  // the gradient of the last minibatch
  Floats parameters_;
  Adam adam_;
  double steps_ = 0;
  Floats inverse_std_, log_std_slope_;  // with padding: 0 in the first, unused in the second
  double log_density_ = 0, entropy_ = 0;  // of the policy: log π at its mean, and H
  Round round_{};
  Returns returns_{};
  Prepared prepared_;
  std::vector<float> values_;  // of all states, without a team
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

PPO *ppo_new(const Networks *networks, const Loss *loss, const AdamSettings *adam, int shards) {
  return new PPO(*networks, *loss, *adam, shards);
}

void ppo_delete(PPO *ppo) { delete ppo; }

long ppo_exchanged(const PPO *ppo, long states) { return ppo->exchanged(states); }

void ppo_load(PPO *ppo, const float *vector, const float *mean, const float *square, float steps) {
  ppo->load_state(vector, mean, square, steps);
}

void ppo_store(PPO *ppo, float *vector, float *mean, float *square) {
  ppo->store_state(vector, mean, square);
}

void ppo_spent(const PPO *ppo, Spent *to) { *to = ppo->spent(); }

// Of every column of x [rows, cols] its mean, and its sum of squared deviations from that.
void ppo_moments(const float *__restrict x, long rows, long cols, double *__restrict mean,
                 double *__restrict squares) {
  std::fill(mean, mean + cols, 0.0), std::fill(squares, squares + cols, 0.0);
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < cols; j++) mean[j] += x[i * cols + j];
  for (long j = 0; j < cols; j++) mean[j] /= double(rows);
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < cols; j++) {
      const double deviation = x[i * cols + j] - mean[j];
      squares[j] += deviation * deviation;
    }
}

// (x - mean) / std of every column of x [rows, cols], within [-clip, clip]. The columns' numbers are
// repeated, so that vectors fit whatever the number of columns is.
void ppo_normalize(const float *x, long rows, long cols, const float *mean, const float *inverse_std,
                   float clip, float *to) {
  const long period = LANES * cols;
  if (!period) return;
  std::vector<float> means(period), factors(period);
  for (long i = 0; i < period; i++) means[i] = mean[i % cols], factors[i] = inverse_std[i % cols];
  long i = 0;
  for (; i + period <= rows * cols; i += period)
    for (long j = 0; j < period; j += LANES) {
      const Vector scaled = (load(x + i + j) - load(&means[j])) * load(&factors[j]);
      store(to + i + j, clamp(scaled, -clip, clip));
    }
  for (long j = 0; i < rows * cols; i++, j++)
    to[i] = clamp((x[i] - means[j]) * factors[j], -clip, clip);
}

void ppo_begin_round(PPO *ppo, const Round *round, const Returns *returns) {
  ppo->begin_round(*round, *returns);
}

int ppo_estimate(PPO *ppo, Team *team, const Estimates *to) { return ppo->estimate(team, *to); }

long ppo_epoch(PPO *ppo, const Rows *rows, const long *order, long minibatch, float rate,
               float kl_limit, Team *team, float *numbers) {
  return ppo->epoch(*rows, order, minibatch, rate, kl_limit, team, numbers);
}
}
#pragma GCC visibility pop
