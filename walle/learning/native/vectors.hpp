// Short vectors of floats, as wide as the processor's registers.

#pragma once

#include <cstring>

// Floats in a vector, and how many rows of a product's result, two vectors wide, stay in registers:
// more where a row of the result is a row of the left matrix, whose columns come in panels.
#if defined(__AVX512F__)
constexpr int LANES = 16, PRODUCT_ROWS = 14, TRANSPOSED_ROWS = 8;
#elif defined(__AVX__)
constexpr int LANES = 8, PRODUCT_ROWS = 4, TRANSPOSED_ROWS = 4;
#else
constexpr int LANES = 4, PRODUCT_ROWS = 6, TRANSPOSED_ROWS = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));

inline Vector load(const float *from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float *to, Vector x) { std::memcpy(to, &x, sizeof x); }

inline Vector broadcast(float x) { return x - Vector{}; }

inline float sum(Vector x) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

inline Vector square_root(Vector x) {
  Vector root;
  for (int i = 0; i < LANES; i++) root[i] = __builtin_sqrtf(x[i]);
  return root;
}

inline Vector clamp(Vector x, float low, float high) {
  x = x < low ? broadcast(low) : x;
  return x > high ? broadcast(high) : x;
}

// Within [low, high]; what is not a number stays so.
inline float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// The rational function of walle.learning.compiled.tanh, exact to 4e-7.
inline Vector tanh(Vector x) {
  x = clamp(x, -9.0f, 9.0f);
  const Vector z = x * x;
  const Vector p =
      (((1.33546275e-08f * z + 2.06090557e-05f) * z + 3.49558643e-03f) * z + 1.33810242e-01f) * z;
  const Vector q =
      (((7.77654375e-07f * z + 3.28563209e-04f) * z + 2.58769757e-02f) * z + 4.67143398e-01f) * z;
  return x * (p + 1.0f) / (q + 1.0f);
}
