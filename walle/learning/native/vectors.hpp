// Short vectors of floats, as wide as the processor's registers.

#pragma once

#include <cmath>
#include <cstring>
#include <utility>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

// Floats in a vector, and the rows of a product's result, two vectors wide, that fit in registers:
// more of them where a row of the result is a row of the left matrix.
#if defined(__AVX512F__)
constexpr int LANES = 16, PRODUCT_ROWS = 14, TRANSPOSED_ROWS = 8;
#elif defined(__AVX__)
constexpr int LANES = 8, PRODUCT_ROWS = 6, TRANSPOSED_ROWS = 6;
#else
constexpr int LANES = 4, PRODUCT_ROWS = 6, TRANSPOSED_ROWS = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int IntVector __attribute__((vector_size(4 * LANES)));

// While it exists, denormal numbers (below 1.2e-38) count as 0. Adam's moments of units that are
// never active decay to them and stay there, and arithmetic with them takes many times as long.
class FlushDenormals {
#if defined(__SSE__)
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // FTZ and DAZ
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

inline Vector load(const float *from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

inline void store(float *to, Vector x) { std::memcpy(to, &x, sizeof x); }

inline Vector broadcast(float x) { return x - Vector{}; }

// `x` in a register. For AVX2, g++ would otherwise read it from memory for each of its products,
// and reads are slower than products.
inline Vector in_register(Vector x) {
#if defined(__AVX__) && !defined(__AVX512F__)
  asm("" : "+x"(x));
#endif
  return x;
}

inline float sum(Vector x) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] += x[i + half];
  return x[0];
}

inline float maximum(Vector x) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) x[i] = x[i] < x[i + half] ? x[i + half] : x[i];
  return x[0];
}

template <int... I>
inline IntVector numbered(std::integer_sequence<int, I...>) {
  return IntVector{I...};
}

// Mask of the first `count` lanes for `only`, which clears the other lanes.
inline IntVector first_lanes(int count) {
  return numbered(std::make_integer_sequence<int, LANES>()) < count;
}

inline Vector only(IntVector mask, Vector x) { return Vector(IntVector(x) & mask); }

inline Vector square_root(Vector x) {
  Vector root;
  for (int i = 0; i < LANES; i++) root[i] = __builtin_sqrtf(x[i]);
  return root;
}

inline Vector clamp(Vector x, float low, float high) {
  x = x < low ? broadcast(low) : x;
  return x > high ? broadcast(high) : x;
}

// x within [low, high]; NaN stays NaN.
inline float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// The rational function x P(x²) / Q(x²) with polynomials of degree 4, exact to 4e-7.
inline Vector tanh(Vector x) {
  x = clamp(x, -9.0f, 9.0f);
  const Vector z = x * x;
  const Vector p =
      (((1.33546275e-08f * z + 2.06090557e-05f) * z + 3.49558643e-03f) * z + 1.33810242e-01f) * z;
  const Vector q =
      (((7.77654375e-07f * z + 3.28563209e-04f) * z + 2.58769757e-02f) * z + 4.67143398e-01f) * z;
  return x * (p + 1.0f) / (q + 1.0f);
}

constexpr float LOG_LARGEST = 88.0f;  // whose exponential is just finite

// Exact to 2e-7 of the result (Moshier's Cephes, expf): 2ⁿ times a polynomial of the remainder. The
// result is that of -87, nearly the smallest float, below -87, and infinity above 88.
inline Vector exp(Vector x) {
  constexpr float MAGIC = 12582912.0f;  // 1.5 x 2²³: a sum with it is rounded to a whole number
  const Vector bounded = clamp(x, -87.0f, 88.0f);
  const Vector shifted = bounded * 1.44269504f + MAGIC, n = shifted - MAGIC;
  const Vector r = bounded - n * 0.693359375f - n * -2.12194440e-4f;
  Vector p = 1.9875691500e-4f * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const IntVector power = (IntVector(shifted) - 0x4b400000 + 127) << 23;
  const Vector result = (p * r * r + r + 1.0f) * Vector(power);
  return x > LOG_LARGEST ? broadcast(INFINITY) : result;
}

// Half of a step of `transpose`, which swaps blocks of HALF lanes between two rows.
template <int HALF, bool HIGH, int... I>
inline Vector exchanged(Vector a, Vector b, std::integer_sequence<int, I...>) {
  return Vector{(HIGH ? (I & HALF ? b[I] : a[(I + HALF) % LANES])
                      : (I & HALF ? b[(I + LANES - HALF) % LANES] : a[I]))...};
}

// Transposes a square of LANES rows and columns.
template <int HALF = 1>
inline void transpose(Vector *rows) {
  if constexpr (HALF < LANES) {
    constexpr std::make_integer_sequence<int, LANES> lanes;
    for (int i = 0; i < LANES; i++) {
      if (i & HALF) continue;
      const Vector a = rows[i], b = rows[i + HALF];
      rows[i] = exchanged<HALF, false>(a, b, lanes);
      rows[i + HALF] = exchanged<HALF, true>(a, b, lanes);
    }
    transpose<2 * HALF>(rows);
  }
}

// The sum of each of LANES rows, which are overwritten.
inline Vector row_sums(Vector *rows) {
  transpose(rows);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) rows[i] += rows[i + half];
  return rows[0];
}
