// Adam's step on packed parameters; see walle/learning/adam.py.

#pragma once

#include <cmath>

#include "mlp.hpp"

class Adam {
 public:
  Adam(long size, double beta1, double beta2)
      : size_(size),
        first_(float(1 - beta1)),
        second_(float(1 - beta2)),
        mean_(zeros(size)),
        square_(zeros(size)) {}

  float *mean() { return mean_.get(); }
  float *square() { return square_.get(); }

  // One step with a gradient times `scale`; `rate` and `epsilon` are αₜ and εₜ there, corrected
  // for the bias of the moments.
  void step(float *parameters, const float *gradient, float scale, float rate, float epsilon) {
    for (long i = 0; i < size_; i += LANES) {
      const Vector g = load(gradient + i) * scale;
      Vector m = load(&mean_[i]), v = load(&square_[i]);
      m += first_ * (g - m);
      v += second_ * (g * g - v);
      store(&mean_[i], m);
      store(&square_[i], v);
      store(parameters + i, load(parameters + i) - quotient(rate * m, square_root(v) + epsilon));
    }
  }

 private:
  long size_;
  float first_, second_;
  Floats mean_, square_;
};

// The sum of the squares.
inline float squares(const float *x, long size) {
  Vector total{};
  for (long i = 0; i < size; i += LANES) total += load(x + i) * load(x + i);
  return sum(total);
}
