// A network of fully connected layers, and the gradient of its parameters.
//
// Parameters and gradients are packed: each layer's weights [inputs, outputs] in panels, then its
// biases. The weights of a single output are a row, [1, inputs]: as a padded column, most of their
// products would be padding. Rows pass through the network in blocks whose layers stay in the
// processor's cache.

#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "panels.hpp"

constexpr int BLOCK = 64;  // rows

struct Free {
  void operator()(float *memory) const { std::free(memory); }
};
using Floats = std::unique_ptr<float[], Free>;

// Zeros, aligned to a line of the cache.
inline Floats zeros(long count) {
  const long bytes = (count * long(sizeof(float)) + 63) / 64 * 64;
  void *memory = std::aligned_alloc(64, bytes);
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return Floats(static_cast<float *>(memory));
}

// Copies torch's numbers, which `torch` passes, to ours, or, `to_python`, the other way.
inline void copy_numbers(float *&torch, float *ours, int count, bool to_python) {
  for (; count--; torch++, ours++) (to_python ? *torch : *ours) = to_python ? *ours : *torch;
}

// Rows of numbers, BLOCK by default.
struct Block {
  // `read` takes the columns from `begin` on of rows of `width`; by default a row has `cols`.
  explicit Block(int cols, int begin = 0, int width = 0, int rows = BLOCK)
      : memory(zeros(Panels::size(rows, cols))),
        panels(memory.get(), rows, cols),
        last_lanes(first_lanes((cols - 1) % LANES + 1)),
        begin(begin),
        width(width ? width : cols) {}

  // Copies rows of `from` [count, width]: the rows order[first], order[first + 1], …, or, if `order`
  // is null, first, first + 1, …. A row is read by whole vectors, which may reach into the next.
  void read(const float *from, long count, const long *order, long first, int rows) {
    const int cols = panels.cols, whole = (cols - 1) / LANES * LANES;
    const float *end = from + count * width - LANES;
    for (int row = 0; row < rows; row++) {
      const float *x = from + (order ? order[first + row] : first + row) * width + begin;
      if (x + whole > end) {
        read_row(row, x);
        continue;
      }
      for (int col = 0; col < whole; col += LANES) store(&panels.at(row, col), load(x + col));
      store(&panels.at(row, whole), only(last_lanes, load(x + whole)));
    }
  }

  void read_row(int row, const float *from) {
    for (int col = 0; col < panels.cols; col += panels.width)
      std::memcpy(panels.panel(col) + long(row) * panels.width, from + col,
                  sizeof(float) * least(panels.cols - col, panels.width));
  }

  Floats memory;
  Panels panels;
  IntVector last_lanes;  // of a row's last vector
  int begin, width;
};

// As in walle/nets/mlp.py; the last one is NORM_RELU in a critic and RELU in a policy.
enum Activation { TANH = 0, RELU = 1, NORM_RELU = 2, CRITIC_NORM_RELU = 3 };

inline Activation of_policy(int key) { return key == CRITIC_NORM_RELU ? RELU : Activation(key); }
inline Activation of_critic(int key) { return key == CRITIC_NORM_RELU ? NORM_RELU : Activation(key); }

class MLP {
 public:
  // `sizes` are the widths of `layers` + 1 layers; the packed parameters begin at `offset`.
  MLP(const int *sizes, int layers, Activation activation, long offset)
      : activation_(activation), end_(offset) {
    for (int i = 0; i < layers; i++) {
      Layer layer;
      layer.inputs = sizes[i], layer.outputs = sizes[i + 1];
      layer.weights = end_;
      layer.biases = end_ + (layer.is_row() ? Panels::padded(layer.inputs)
                                            : Panels::size(layer.inputs, layer.outputs));
      if (!layer.is_row()) layer.transposed = zeros(Panels::size(layer.outputs, layer.inputs));
      end_ = layer.biases + Panels::padded(layer.outputs);
      layers_.push_back(std::move(layer));
      values_.emplace_back(layers_.back().outputs);
      errors_.emplace_back(layers_.back().outputs);
      if (activation_ == NORM_RELU) normed_.emplace_back(layers_.back().outputs);
    }
  }

  long end() const { return end_; }  // where the packed parameters end
  const Panels &output() const { return values_.back().panels; }
  const Panels &output_error() const { return errors_.back().panels; }

  Panels weights(int i, const float *packed) const {
    const Layer &layer = layers_[i];
    float *begin = const_cast<float *>(packed) + layer.weights;
    return layer.is_row() ? Panels(begin, 1, layer.inputs)
                          : Panels(begin, layer.inputs, layer.outputs);
  }

  float *biases(int i, float *packed) const { return packed + layers_[i].biases; }

  // Computes `output` for the first `rows` rows of `input`, at most BLOCK.
  void forward(const Panels &input, const float *parameters, int rows) {
    const int last = int(layers_.size()) - 1;
    for (int i = 0; i <= last; i++) {
      const Panels &x = i ? values_[i - 1].panels : input, &y = values_[i].panels;
      const float *biases = parameters + layers_[i].biases;
      if (layers_[i].is_row())
        row_products(x, weights(i, parameters), *biases, y, rows);
      else
        product(x, weights(i, parameters), biases, y, rows);
      if (i == last) break;
      if (activation_ == NORM_RELU) normalize(i, rows);
      if (activation_ == TANH)
        apply(y, y, rows, [](Vector z, Vector) { return tanh(z); });
      else
        apply(y, y, rows, [](Vector z, Vector) { return z < 0.0f ? Vector{} : z; });
    }
  }

  // Must be called once for new parameters before `backward`, and with `from` 0 before
  // `input_error`. The parameters must keep their address.
  void prepare_backward(const float *parameters, int from = 1) {
    for (int i = from; i < int(layers_.size()); i++) {
      Layer &layer = layers_[i];
      layer.backward = layer.is_row() ? weights(i, parameters)
                                      : Panels(layer.transposed.get(), layer.outputs, layer.inputs);
      if (!layer.is_row()) transpose(weights(i, parameters), layer.backward);
    }
  }

  // Writes to `gradient`, or adds to it, the gradient that follows from `output_error` for the rows
  // of the last `forward`.
  void backward(const Panels &input, bool add, float *gradient, int rows) {
    for (int i = int(layers_.size()) - 1; i >= 0; i--) {
      const Panels &x = i ? values_[i - 1].panels : input, &error = errors_[i].panels;
      if (layers_[i].is_row())
        transposed_product(error, x, weights(i, gradient), rows, add);
      else
        transposed_product(x, error, weights(i, gradient), rows, add);
      column_sums(error, rows, add, gradient + layers_[i].biases);
      if (i) error_before(i, rows);
    }
  }

  // The slope at the input that follows from `output_error`, without that at the parameters.
  void input_error(const Panels &to, int rows) {
    for (int i = int(layers_.size()) - 1; i; i--) error_before(i, rows);
    product(errors_[0].panels, layers_[0].backward, nullptr, to, rows);
  }

  // Puts some rows of the last `forward` first, for an `input_error` of these alone; `rows` ascend.
  void select(const std::vector<int> &rows) {
    const auto move = [&](const Panels &x) {
      for (int first = 0; first < x.cols; first += x.width)
        for (size_t to = 0; to < rows.size(); to++)
          std::memmove(x.panel(first) + to * x.width, x.panel(first) + long(rows[to]) * x.width,
                       sizeof(float) * x.width);
    };
    for (size_t i = 0; i + 1 < layers_.size(); i++) {
      move(values_[i].panels);
      if (activation_ != NORM_RELU) continue;
      move(normed_[i].panels);
      float *inverse_std = layers_[i].inverse_std;
      for (size_t to = 0; to < rows.size(); to++) inverse_std[to] = inverse_std[rows[to]];
    }
  }

  // Copies torch's parameters, whose weights are [outputs, inputs], to the packed ones, or,
  // `to_python`, the other way; returns where torch's end.
  float *copy(float *torch, float *packed, bool to_python) const {
    for (size_t i = 0; i < layers_.size(); i++) {
      const Panels ours = weights(int(i), packed);
      for (int j = 0; j < layers_[i].outputs; j++)
        for (int k = 0; k < layers_[i].inputs; k++)
          copy_numbers(torch, layers_[i].is_row() ? &ours.at(j, k) : &ours.at(k, j), 1, to_python);
      copy_numbers(torch, packed + layers_[i].biases, layers_[i].outputs, to_python);
    }
    return torch;
  }

 private:
  struct Layer {
    int inputs, outputs;
    long weights, biases;  // where they begin
    Floats transposed;     // the weights, [outputs, inputs] in panels
    Panels backward;       // the same, or the weights themselves if they are a row
    float inverse_std[BLOCK];  // of each row's outputs, for NORM_RELU

    bool is_row() const { return outputs == 1; }
  };

  // The mean of `term`, a function of the first of LANES columns, over a row; 0 in its padding.
  template <class Term>
  static float row_mean(int cols, Term term) {
    Vector total{};
    for (int col = 0; col < cols; col += LANES) total += term(col);
    return sum(total) / float(cols);
  }

  // Layer normalisation of layer i's outputs, in their place.
  void normalize(int i, int rows) {
    const Panels &y = values_[i].panels, &z = normed_[i].panels;
    for (int row = 0; row < rows; row++) {
      const float mean = row_mean(y.cols, [&](int col) { return load(&y.at(row, col)); });
      const float variance = row_mean(y.cols, [&](int col) {
        const Vector x = only(first_lanes(y.cols - col), load(&y.at(row, col)) - mean);
        store(&z.at(row, col), x);
        return x * x;
      });
      const float factor = layers_[i].inverse_std[row] = 1 / std::sqrt(variance + EPSILON);
      for (int col = 0; col < y.cols; col += LANES) {
        store(&z.at(row, col), load(&z.at(row, col)) * factor);
        store(&y.at(row, col), load(&z.at(row, col)));
      }
    }
  }

  // The error before `normalize` from that after it, in its place.
  void error_before_normalize(int i, int rows) {
    const Panels &e = errors_[i].panels, &z = normed_[i].panels;
    for (int row = 0; row < rows; row++) {
      const auto error = [&](int col) { return load(&e.at(row, col)); };
      const auto normed = [&](int col) { return load(&z.at(row, col)); };
      const float mean = row_mean(e.cols, error), factor = layers_[i].inverse_std[row];
      const float along = row_mean(e.cols, [&](int col) { return error(col) * normed(col); });
      for (int col = 0; col < e.cols; col += LANES) {
        const Vector own = (error(col) - mean - normed(col) * along) * factor;
        store(&e.at(row, col), only(first_lanes(e.cols - col), own));
      }
    }
  }

  // The error of layer i - 1 from that of layer i.
  void error_before(int i, int rows) {
    const Panels &to = errors_[i - 1].panels, &values = values_[i - 1].panels;
    product(errors_[i].panels, layers_[i].backward, nullptr, to, rows);
    if (activation_ == TANH)
      apply(to, values, rows, [](Vector e, Vector y) { return e * (1.0f - y * y); });
    else
      apply(to, values, rows, [](Vector e, Vector y) { return y <= 0.0f ? Vector{} : e; });
    if (activation_ == NORM_RELU) error_before_normalize(i - 1, rows);
  }

  static constexpr float EPSILON = 1e-5f;  // added to variances

  Activation activation_;
  long end_;
  std::vector<Layer> layers_;
  std::vector<Block> values_, errors_, normed_;  // of each layer; the last for NORM_RELU
};
