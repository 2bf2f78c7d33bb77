// Fully connected networks with batch normalisation, and the gradient of their parameters; see
// NormedMLPs in walle/nets/normed.py, which has the equations.
//
// A network's parameters are, for each layer, the scale and, except at the input, the shift of its
// normalised inputs, and its weights [inputs, outputs] in panels; the last layer's biases follow.
// Moments are the mean, then the variance of each layer's inputs, over all rows of a pass.
// Therefore a layer is computed for all rows before the next one; each panel of columns is
// normalised right after its product, while it is in the cache.

#pragma once

#include <algorithm>

#include "mlp.hpp"

class NormedMLPs {
 public:
  // `sizes` are the widths of the `layers` + 1 layers of each network; a pass has `rows` rows at
  // most.
  NormedMLPs(int count, const int *sizes, int layers, Activation activation, int rows)
      : count_(count),
        activation_(activation),
        output_(sizes[layers], 0, 0, rows),
        slopes_(zeros(long(rows) * 2 * LANES)) {
    for (int i = 0; i < layers; i++) {
      const int inputs = sizes[i], outputs = sizes[i + 1], width = Panels::padded(inputs);
      const long shift = size_ + width, weights = i ? shift + width : shift;
      layers_.push_back({inputs, outputs, size_, shift, weights, moments_size_,
                         zeros(Panels::size(outputs, inputs)), Block(inputs, 0, 0, rows),
                         Block(inputs, 0, 0, rows)});
      size_ = weights + Panels::size(inputs, outputs);
      moments_size_ += 2 * width;
    }
    biases_ = size_, size_ += Panels::padded(sizes[layers]);
    moments_ = zeros(moments_size_);
  }

  long size() const { return count_ * size_; }
  long moments_size() const { return count_ * moments_size_; }
  Block &input() { return layers_[0].normed; }
  const Panels &output() const { return output_.panels; }

  // Normalises the first `rows` rows of `input`, for the passes that follow.
  void normalize_input(int rows) {
    for (int col = 0; col < layers_[0].inputs; col += LANES) normalize(0, col, rows);
  }

  // A pass of network k: computes the rows from `first` to before `end` of `output`, with the
  // moments of `rows` rows.
  void forward(int k, const float *parameters, int rows, int first, int end) {
    parameters += k * size_;
    for (int i = 0; i < int(layers_.size()); i++) {
      const Panels &z = layers_[i].normed.panels;
      for (int col = 0; col < z.cols; col += z.width) {
        if (i)
          panel_product(layers_[i - 1].values.panels, weights(i - 1, parameters), col, nullptr,
                        z.panel(col), rows);
        for (int v = col; v < col + z.width; v += LANES) {
          if (i) normalize(i, v, rows);
          activate(i, parameters, v, rows);
        }
      }
    }
    const int last = int(layers_.size()) - 1;
    product(layers_[last].values.panels, weights(last, parameters), parameters + biases_, output(),
            end, first);
  }

  // Writes network k's part of the gradient that follows from the slope of a loss at the first
  // `count` rows of `output`, written in their place, and behind the gradient the moments, times
  // `share`. The other rows are constants. To be called after `forward` for `count` rows, whose
  // results are overwritten.
  void backward(int k, const float *parameters, int rows, int count, float share, float *to) {
    float *gradient = to + k * size_, *moments = to + size() + k * moments_size_;
    parameters += k * size_;
    for (long i = 0; i < moments_size_; i++) moments[i] = moments_[i] * share;
    column_sums(output(), count, false, gradient + biases_);
    for (int i = int(layers_.size()) - 1; i >= 0; i--) {
      const Layer &layer = layers_[i];
      const Panels &errors = i + 1 < int(layers_.size()) ? layers_[i + 1].normed.panels : output();
      const Panels &inputs = i ? layer.values.panels : layer.normed.panels;
      transposed_product(inputs, errors, weights(i, gradient), count, false);
      if (i) error_before(i, errors, parameters, rows, count, gradient);
    }
    // The products with normalised inputs are the slopes at weights times scales.
    const Panels w = weights(0, parameters), slopes = weights(0, gradient);
    for (int row = 0; row < w.rows; row++) {
      Vector total{};
      for (int col = 0; col < w.cols; col += LANES) {
        const Vector slope = load(&slopes.at(row, col));
        total += load(&w.at(row, col)) * slope;
        store(&slopes.at(row, col), slope * parameters[row]);
      }
      gradient[row] = sum(total);
    }
    std::fill(gradient + w.rows, gradient + Panels::padded(w.rows), 0.0f);
  }

  // Scales the incoming weights of each unit to a norm of 1.
  void project(float *parameters) const {
    for (int k = 0; k < count_; k++, parameters += size_)
      for (int i = 0; i < int(layers_.size()); i++) {
        const Panels w = weights(i, parameters);
        for (int col = 0; col < w.cols; col += LANES) {
          float *x = &w.at(0, col);
          const Vector squares =
              total(w, [&](long at) { return load(x + at) * load(x + at); }, w.rows);
          const Vector inverse = 1.0f / square_root(squares);
          for (int row = 0; row < w.rows; row++, x += w.width)  // padding stays zero
            store(x, squares == 0.0f ? Vector{} : load(x) * inverse);
        }
      }
  }

  // Writes the parameters of `mlps`, ordinary networks with the same outputs where `moments` are
  // constants.
  void fold(const float *parameters, const float *moments, const MLP *mlps, float *to) const {
    for (int k = 0; k < count_; k++, parameters += size_, moments += moments_size_)
      for (int i = 0; i < int(layers_.size()); i++) {
        const Panels from = weights(i, parameters), w = mlps[k].weights(i, to);
        for (int col = 0; col < from.cols; col += LANES) {
          Vector scale = broadcast(1), bias;
          if (i + 1 == int(layers_.size())) {
            bias = load(parameters + biases_ + col);
          } else {
            const Layer &next = layers_[i + 1];
            scale = factor(next, parameters, moments, col);
            bias = load(parameters + next.shift + col) - scale * load(moments + next.mean + col);
          }
          for (int row = 0; row < from.rows; row++) {
            Vector x = load(&from.at(row, col)) * scale;
            if (!i) {
              const float variance = moments[Panels::padded(from.rows) + row];
              x *= parameters[row] / std::sqrt(variance + EPSILON);
              bias -= x * moments[row];
            }
            if (w.cols == from.cols)
              store(&w.at(row, col), x);
            else
              w.at(0, row) = x[0];  // the weights of a single output
          }
          store(mlps[k].biases(i, to) + col, bias);
        }
      }
  }

  // Copies torch's parameters to the packed ones, or, `to_python`, the other way.
  void copy(float *torch, float *packed, bool to_python) const {
    for (int k = 0; k < count_; k++, packed += size_) {
      for (int i = 0; i < int(layers_.size()); i++) {
        const Layer &layer = layers_[i];
        copy_numbers(torch, packed + layer.scale, layer.inputs, to_python);
        if (i) copy_numbers(torch, packed + layer.shift, layer.inputs, to_python);
        for (int j = 0; j < layer.outputs; j++)
          for (int row = 0; row < layer.inputs; row++)
            copy_numbers(torch, &weights(i, packed).at(row, j), 1, to_python);
      }
      copy_numbers(torch, packed + biases_, layers_.back().outputs, to_python);
    }
  }

  // The same for moments; torch's are all means of a network, then all variances.
  void copy_moments(float *torch, float *packed, bool to_python) const {
    for (int k = 0; k < count_; k++, packed += moments_size_)
      for (int second = 0; second < 2; second++)
        for (const Layer &layer : layers_)
          copy_numbers(torch, packed + layer.mean + second * Panels::padded(layer.inputs),
                       layer.inputs, to_python);
  }

 private:
  static constexpr float EPSILON = 1e-3f;  // added to variances

  struct Layer {
    int inputs, outputs;
    long scale, shift, weights;  // where they begin
    long mean;                   // where it begins among the moments; the variance follows
    Floats transposed;           // the weights, [outputs, inputs] in panels
    Block normed, values;        // the inputs: normalised; scaled, shifted and activated
  };

  // Scale / √(variance + ε) of LANES columns of a layer's inputs.
  static Vector factor(const Layer &layer, const float *parameters, const float *moments,
                       int col) {
    const float *variance = moments + layer.mean + Panels::padded(layer.inputs) + col;
    return load(parameters + layer.scale + col) / square_root(load(variance) + EPSILON);
  }

  // The sum over rows of `term`, which gets the distance of a row from the first.
  template <class Term>
  static Vector total(const Panels &x, Term term, int rows) {
    Vector sums[4] = {};
    int row = 0;
    for (; row + 4 <= rows; row += 4)
      unrolled<4>([&](auto k) { sums[k] += term(long(row + k) * x.width); });
    for (; row < rows; row++) sums[0] += term(long(row) * x.width);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // Normalises LANES columns of a layer's inputs.
  void normalize(int i, int col, int rows) {
    const Panels &z = layers_[i].normed.panels;
    float *x = &z.at(0, col), *to = moments_.get() + layers_[i].mean + col;
    const Vector mean = total(z, [&](long at) { return load(x + at); }, rows) / float(rows);
    const auto square = [&](long at) { return (load(x + at) - mean) * (load(x + at) - mean); };
    const Vector variance = total(z, square, rows) / float(rows);
    store(to, mean), store(to + Panels::padded(z.cols), variance);
    const Vector inverse = 1.0f / square_root(variance + EPSILON);
    for (int row = 0; row < rows; row++, x += z.width) store(x, (load(x) - mean) * inverse);
  }

  // Computes LANES columns of a layer's inputs from the normalised ones.
  void activate(int i, const float *parameters, int col, int rows) const {
    const Layer &layer = layers_[i];
    const Vector scale = load(parameters + layer.scale + col);
    const Vector shift = i ? load(parameters + layer.shift + col) : Vector{};
    const float *x = &layer.normed.panels.at(0, col);
    float *y = &layer.values.panels.at(0, col);
    const long size = long(rows) * layer.normed.panels.width;
    for (long at = 0; at < size; at += layer.normed.panels.width) {
      const Vector z = load(x + at) * scale + shift;
      store(y + at, !i ? z : activation_ == TANH ? tanh(z) : z < 0.0f ? Vector{} : z);
    }
  }

  // The slope at the first `count` products before layer i from that at its own, `errors`, and the
  // gradient of scale and shift.
  void error_before(int i, const Panels &errors, const float *parameters, int rows, int count,
                    float *gradient) {
    const Layer &layer = layers_[i];
    const Panels w(layer.transposed.get(), layer.outputs, layer.inputs), &z = layer.normed.panels;
    transpose(weights(i, parameters), w);
    for (int col = 0; col < Panels::padded(z.cols); col += LANES) {
      if (col % z.width == 0) panel_product(errors, w, col, nullptr, slopes_.get(), count);
      float *x = &z.at(0, col), *slopes = slopes_.get() + col % z.width;
      const float *y = &layer.values.panels.at(0, col);
      const Vector of_shift = total(z, [&](long at) {
        const Vector e = load(slopes + at), value = load(y + at);
        const Vector slope =
            activation_ == TANH ? e * (1.0f - value * value) : value <= 0.0f ? Vector{} : e;
        store(slopes + at, slope);
        return slope;
      }, count);
      const Vector of_scale =
          total(z, [&](long at) { return load(slopes + at) * load(x + at); }, count);
      store(gradient + layer.shift + col, of_shift);
      store(gradient + layer.scale + col, of_scale);
      // A row acts on its own value, and through mean and variance of `rows` rows on all of them.
      const Vector scale = factor(layer, parameters, moments_.get(), col);
      const Vector mean = of_shift / float(rows), along = of_scale / float(rows);
      for (int row = 0; row < count; row++, x += z.width, slopes += z.width)
        store(x, scale * (load(slopes) - mean - load(x) * along));
    }
  }

  Panels weights(int i, const float *packed) const {
    float *begin = const_cast<float *>(packed) + layers_[i].weights;
    return Panels(begin, layers_[i].inputs, layers_[i].outputs);
  }

  int count_;
  Activation activation_;
  long size_ = 0, biases_ = 0, moments_size_ = 0;  // of a network
  std::vector<Layer> layers_;
  Block output_;
  Floats slopes_;      // of a panel of values
  Floats moments_;  // of the last pass
};
