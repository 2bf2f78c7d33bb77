// Adam's step on packed parameters; see walle/learning/adam.py.

#pragma once

#include <cmath>

#include "mlp.hpp"

class Adam {
 public:
  Adam(long size, double beta1, double beta2)
      : size_(size), beta1_(beta1), beta2_(beta2),
        mean_(zeros(size)),
        square_(zeros(size)) {}

  float *mean() { return mean_.get(); }
  float *square() { return square_.get(); }

  // Step number `t`, from 1, with a gradient times `scale`; see there for the corrected size and ε.
  void step(float *parameters, const float *gradient, float scale, float rate, double epsilon,
            double t) {
    const double root = std::sqrt(1 - std::pow(beta2_, t));
    const float size = float(rate * root / (1 - std::pow(beta1_, t))), added = float(epsilon * root);
    const float first = float(1 - beta1_), second = float(1 - beta2_);
    for (long i = 0; i < size_; i += LANES) {
      const Vector g = load(gradient + i) * scale;
      Vector m = load(&mean_[i]), v = load(&square_[i]);
      m += first * (g - m);
      v += second * (g * g - v);
      store(&mean_[i], m);
      store(&square_[i], v);
      store(parameters + i, load(parameters + i) - size * m / (square_root(v) + added));
    }
  }

 private:
  long size_;
  double beta1_, beta2_;
  Floats mean_, square_;
};

// The sum of the squares.
inline float squares(const float *x, long size) {
  Vector total{};
  for (long i = 0; i < size; i += LANES) total += load(x + i) * load(x + i);
  return sum(total);
}
