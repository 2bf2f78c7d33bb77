// The moments of observations, and their normalisation; walle/learning/native/normalize.py calls them.

#include <algorithm>
#include <vector>

#include "vectors.hpp"

#pragma GCC visibility push(default)
extern "C" {

// The mean of every column of x [rows, cols], and its sum of squared deviations from the mean.
void normalize_moments(const float *__restrict x, long rows, long cols, double *__restrict mean,
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

// (x - mean) / std of every column of x [rows, cols], within [-clip, clip]. The columns' means and
// deviations are repeated, so that vectors fit any number of columns.
void normalize_rows(const float *x, long rows, long cols, const float *mean,
                    const float *inverse_std, float clip, float *to) {
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
}
#pragma GCC visibility pop
