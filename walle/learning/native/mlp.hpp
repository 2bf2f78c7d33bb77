// A network of fully connected layers, and the gradient of its parameters.
//
// Parameters and gradients are packed: each layer's weights [inputs, outputs] in panels, then its
// biases. Rows pass through the network in blocks whose layers stay in the processor's cache.

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

// Zeros that begin at a line of the cache.
inline Floats zeros(long count) {
  const long bytes = (count * long(sizeof(float)) + 63) / 64 * 64;
  void *memory = std::aligned_alloc(64, bytes);
  if (!memory) throw std::bad_alloc();
  std::memset(memory, 0, bytes);
  return Floats(static_cast<float *>(memory));
}

// Up to BLOCK rows of numbers.
struct Block {
  explicit Block(int cols)
      : memory(zeros(Panels::size(BLOCK, cols))), panels(memory.get(), BLOCK, cols) {}

  // Copies rows of `from` [N, cols]: the rows order[first], order[first + 1], …, or, if `order` is
  // null, first, first + 1, ….
  void read(const float *from, const long *order, long first, int rows) {
    for (int row = 0; row < rows; row++)
      read_row(row, from + (order ? order[first + row] : first + row) * panels.cols);
  }

  void read_row(int row, const float *from) {
    for (int col = 0; col < panels.cols; col += panels.width)
      std::memcpy(panels.panel(col) + long(row) * panels.width, from + col,
                  sizeof(float) * least(panels.cols - col, panels.width));
  }

  Floats memory;
  Panels panels;
};

enum Activation { TANH = 0, RELU = 1 };

class MLP {
 public:
  // `sizes` are the widths of `layers` + 1 layers; the packed parameters begin at `offset`.
  MLP(const int *sizes, int layers, Activation activation, long offset)
      : activation_(activation), end_(offset) {
    for (int i = 0; i < layers; i++) {
      Layer layer;
      layer.inputs = sizes[i], layer.outputs = sizes[i + 1];
      layer.weights = end_;
      layer.biases = end_ + Panels::size(layer.inputs, layer.outputs);
      layer.transposed = zeros(Panels::size(layer.outputs, layer.inputs));
      end_ = layer.biases + Panels::padded(layer.outputs);
      layers_.push_back(std::move(layer));
      values_.emplace_back(layers_.back().outputs);
      errors_.emplace_back(layers_.back().outputs);
    }
  }

  long end() const { return end_; }  // where the packed parameters end
  const Panels &output() const { return values_.back().panels; }
  const Panels &output_error() const { return errors_.back().panels; }

  // Computes `output` for the first `rows` rows of `input`, at most BLOCK.
  void forward(const Panels &input, const float *parameters, int rows) {
    const int last = int(layers_.size()) - 1;
    for (int i = 0; i <= last; i++) {
      const Panels &x = i ? values_[i - 1].panels : input, &y = values_[i].panels;
      product(x, weights(i, parameters), parameters + layers_[i].biases, y, rows);
      if (i == last) break;
      if (activation_ == TANH)
        apply(y, y, rows, [](Vector z, Vector) { return tanh(z); });
      else
        apply(y, y, rows, [](Vector z, Vector) { return z < 0.0f ? Vector{} : z; });
    }
  }

  // To be called once for new parameters, before `backward`; for `input_error` from layer 0 on.
  void prepare_backward(const float *parameters, int from = 1) {
    for (int i = from; i < int(layers_.size()); i++)
      transpose(weights(i, parameters), transposed(i));
  }

  // The gradient that follows from `output_error`, for the rows of the last `forward`, to be added
  // to `gradient` or written there.
  void backward(const Panels &input, bool add, float *gradient, int rows) {
    for (int i = int(layers_.size()) - 1; i >= 0; i--) {
      const Panels &x = i ? values_[i - 1].panels : input, &error = errors_[i].panels;
      transposed_product(x, error, weights(i, gradient), rows, add);
      column_sums(error, rows, add, gradient + layers_[i].biases);
      if (i) error_before(i, rows);
    }
  }

  // What follows from `output_error` for the input: its slope, without that of the parameters.
  void input_error(const Panels &to, int rows) {
    for (int i = int(layers_.size()) - 1; i; i--) error_before(i, rows);
    product(errors_[0].panels, transposed(0), nullptr, to, rows);
  }

  // Puts some rows of the last `forward` first, for an `input_error` of these alone; `rows` ascend.
  void select(const std::vector<int> &rows) {
    for (size_t i = 0; i + 1 < layers_.size(); i++)
      for (int first = 0; first < layers_[i].outputs; first += values_[i].panels.width) {
        const int width = values_[i].panels.width;
        float *panel = values_[i].panels.panel(first);
        for (size_t to = 0; to < rows.size(); to++)
          std::memmove(panel + to * width, panel + long(rows[to]) * width, sizeof(float) * width);
      }
  }

  // Packs torch's parameters, whose weights are [outputs, inputs]; returns where they end.
  const float *pack(const float *from, float *packed) const {
    for (size_t i = 0; i < layers_.size(); i++) {
      const Panels to = weights(int(i), packed);
      for (int j = 0; j < to.cols; j++)
        for (int k = 0; k < to.rows; k++) to.at(k, j) = *from++;
      std::memcpy(packed + layers_[i].biases, from, sizeof(float) * to.cols);
      from += to.cols;
    }
    return from;
  }

  // The inverse of `pack`.
  float *unpack(const float *packed, float *to) const {
    for (size_t i = 0; i < layers_.size(); i++) {
      const Panels from = weights(int(i), packed);
      for (int j = 0; j < from.cols; j++)
        for (int k = 0; k < from.rows; k++) *to++ = from.at(k, j);
      std::memcpy(to, packed + layers_[i].biases, sizeof(float) * from.cols);
      to += from.cols;
    }
    return to;
  }

 private:
  struct Layer {
    int inputs, outputs;
    long weights, biases;  // where they begin
    Floats transposed;     // the weights, [outputs, inputs] in panels
  };

  // The error of layer i - 1 from that of layer i.
  void error_before(int i, int rows) {
    const Panels &to = errors_[i - 1].panels, &values = values_[i - 1].panels;
    product(errors_[i].panels, transposed(i), nullptr, to, rows);
    if (activation_ == TANH)
      apply(to, values, rows, [](Vector e, Vector y) { return e * (1.0f - y * y); });
    else
      apply(to, values, rows, [](Vector e, Vector y) { return y <= 0.0f ? Vector{} : e; });
  }

  Panels weights(int i, const float *packed) const {
    const Layer &layer = layers_[i];
    return {const_cast<float *>(packed) + layer.weights, layer.inputs, layer.outputs};
  }

  Panels transposed(int i) const {
    const Layer &layer = layers_[i];
    return {layer.transposed.get(), layer.outputs, layer.inputs};
  }

  Activation activation_;
  long end_;
  std::vector<Layer> layers_;
  std::vector<Block> values_, errors_;  // of each layer
};
