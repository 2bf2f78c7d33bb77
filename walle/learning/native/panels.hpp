// Matrices in panels of columns, and their products.
//
// A panel is one or two vectors wide; its rows are contiguous, and so are the panels. Therefore
// every product reads and writes memory in order, for any width of the matrix. The columns of the
// last panel beyond the matrix's width are padding: zero in all inputs and in all results.

#pragma once

#include "vectors.hpp"

struct Panels {
  float *data = nullptr;
  int rows = 0, cols = 0;
  int width = 0;  // of a panel

  Panels() = default;
  Panels(float *data, int rows, int cols)
      : data(data), rows(rows), cols(cols), width(panel_width(cols)) {}

  static int panel_width(int cols) { return cols <= LANES ? LANES : 2 * LANES; }
  static int padded(int cols) {
    const int width = panel_width(cols);
    return (cols + width - 1) / width * width;
  }
  static long size(int rows, int cols) { return long(rows) * padded(cols); }

  // The panel whose first column is `col`.
  float *panel(int col) const { return data + long(col) * rows; }
  float &at(int row, int col) const {  // a width is a power of two
    return panel(col & -width)[long(row) * width + (col & (width - 1))];
  }

  // A column's entries in `count` rows from `row` on, at most LANES.
  Vector column(int row, int count, int col) const {
    const float *x = &at(row, col);
    float entries[LANES] = {};
    for (int i = 0; i < count; i++) entries[i] = x[i * width];
    return load(entries);
  }
  void set_column(int row, int count, int col, Vector entries) const {
    float from[LANES], *x = &at(row, col);
    store(from, entries);
    for (int i = 0; i < count; i++) x[i * width] = from[i];
  }
};

inline int least(int a, int b) { return a < b ? a : b; }

// Calls `body` with every number below N as a compile-time constant: a compiler keeps arrays of
// vectors in registers only where it knows every index.
template <class Body, int... I>
inline __attribute__((always_inline)) void unrolled(Body body, std::integer_sequence<int, I...>) {
  (body(std::integral_constant<int, I>()), ...);
}

template <int N, class Body>
inline __attribute__((always_inline)) void unrolled(Body body) {
  unrolled(body, std::make_integer_sequence<int, N>());
}

// M rows and V vectors of A B + bias, whose sums stay in registers.
template <int M, int V>
inline void product_tile(const Panels &a, int row, const float *b, int b_width, const float *bias,
                         float *to, int to_width) {
  Vector sums[M * V];
  unrolled<M * V>([&](auto i) { sums[i] = load(bias + i % V * LANES); });
  for (int first = 0; first < a.cols; first += a.width) {
    const float *x = a.panel(first) + long(row) * a.width;
    const int count = least(a.cols - first, a.width);
    for (int k = 0; k < count; k++, b += b_width) {
      Vector y[V];
      unrolled<V>([&](auto v) { y[v] = in_register(load(b + v * LANES)); });
      unrolled<M>([&](auto i) {
        const Vector factor = broadcast(x[i * a.width + k]);
        unrolled<V>([&](auto v) { sums[i * V + v] += factor * y[v]; });
      });
    }
  }
  unrolled<M * V>([&](auto i) { store(to + i / V * to_width + i % V * LANES, sums[i]); });
}

template <int V, int M = PRODUCT_ROWS>
inline void product_panel(const Panels &a, int row, int rows, const float *b, int b_width,
                          const float *bias, float *to) {
  if constexpr (M > 0) {
    for (; row + M <= rows; row += M)
      product_tile<M, V>(a, row, b, b_width, bias, to + long(row) * b_width, b_width);
    if (row < rows) product_panel<V, M - 1>(a, row, rows, b, b_width, bias, to);
  }
}

// Writes a panel, whose first column is `first`, of A B + bias, for the rows from `row` on.
inline void panel_product(const Panels &a, const Panels &b, int first, const float *bias, float *to,
                          int rows, int row = 0) {
  static const float zero[2 * LANES] = {};
  const float *added = bias ? bias + first : zero;
  if (b.width > LANES)
    product_panel<2>(a, row, rows, b.panel(first), b.width, added, to);
  else
    product_panel<1>(a, row, rows, b.panel(first), b.width, added, to);
}

// C = A B + bias for the rows of A and C from `row` to before `rows`; without a bias if it is null.
inline void product(const Panels &a, const Panels &b, const float *bias, const Panels &c, int rows,
                    int row = 0) {
  for (int first = 0; first < b.cols; first += b.width)
    panel_product(a, b, first, bias, c.panel(first), rows, row);
}

// Writes or adds M rows and V vectors of A' B; `a` points to the first of M columns of A.
template <int M, int V>
inline void transposed_tile(const float *a, int a_width, const float *b, int b_width, int rows,
                            bool add, float *to, int to_width) {
  const auto target = [&](int i) { return to + i / V * to_width + i % V * LANES; };
  Vector sums[M * V];
  unrolled<M * V>([&](auto i) { sums[i] = add ? load(target(i)) : Vector{}; });
  for (int k = 0; k < rows; k++, a += a_width, b += b_width) {
    Vector y[V];
    unrolled<V>([&](auto v) { y[v] = in_register(load(b + v * LANES)); });
    unrolled<M>([&](auto i) {
      const Vector factor = broadcast(a[i]);
      unrolled<V>([&](auto v) { sums[i * V + v] += factor * y[v]; });
    });
  }
  unrolled<M * V>([&](auto i) { store(target(i), sums[i]); });
}

template <int V, int M = TRANSPOSED_ROWS>
inline void transposed_panel(const float *a, int a_width, int cols, const float *b, int b_width,
                             int rows, bool add, float *to, int to_width) {
  if constexpr (M > 0) {
    for (; cols >= M; cols -= M, a += M, to += M * to_width)
      transposed_tile<M, V>(a, a_width, b, b_width, rows, add, to, to_width);
    if (cols) transposed_panel<V, M - 1>(a, a_width, cols, b, b_width, rows, add, to, to_width);
  }
}

// C = A' B over the first `rows` rows of A and B, or C + A' B.
inline void transposed_product(const Panels &a, const Panels &b, const Panels &c, int rows,
                               bool add) {
  for (int first = 0; first < b.cols; first += b.width)
    for (int col = 0; col < a.cols; col += a.width) {
      const int cols = least(a.cols - col, a.width);
      const float *x = a.panel(col), *y = b.panel(first);
      float *to = c.panel(first) + long(col) * c.width;
      if (b.width > LANES)
        transposed_panel<2>(x, a.width, cols, y, b.width, rows, add, to, c.width);
      else
        transposed_panel<1>(x, a.width, cols, y, b.width, rows, add, to, c.width);
    }
}

// Writes each column's sum over the first `rows` rows to `sums`, or adds it.
inline void column_sums(const Panels &a, int rows, bool add, float *sums) {
  for (int first = 0; first < a.cols; first += a.width)
    for (int v = 0; v < a.width; v += LANES) {
      const float *x = a.panel(first) + v;
      Vector even = add ? load(sums + first + v) : Vector{}, odd{};
      int row = 0;
      for (; row + 1 < rows; row += 2, x += 2 * a.width) even += load(x), odd += load(x + a.width);
      if (row < rows) even += load(x);
      store(sums + first + v, even + odd);
    }
}

// B = A', in squares of LANES rows and columns.
inline void transpose(const Panels &a, const Panels &b) {
  for (int col = 0; col < a.cols; col += LANES)
    for (int row = 0; row < a.rows; row += LANES) {
      const int cols = least(a.cols - col, LANES), rows = least(a.rows - row, LANES);
      Vector square[LANES] = {};
      for (int i = 0; i < rows; i++) square[i] = load(&a.at(row + i, col));
      transpose(square);
      for (int j = 0; j < cols; j++) store(&b.at(col + j, row), square[j]);
    }
}

// The first `rows` rows of A times a vector, plus a number; the vector is the only row of B, and
// the results are the only column of C.
inline void row_products(const Panels &a, const Panels &b, float bias, const Panels &c, int rows) {
  for (int row = 0; row < rows; row += LANES) {
    const int count = least(rows - row, LANES);
    Vector sums[LANES] = {};
    for (int first = 0; first < a.cols; first += a.width)
      for (int v = 0; v < a.width; v += LANES) {
        const float *x = a.panel(first) + long(row) * a.width + v;
        const Vector y = load(b.panel(first) + v);
        for (int i = 0; i < count; i++) sums[i] += load(x + i * a.width) * y;
      }
    const Vector results = row_sums(sums) + bias;
    for (int i = 0; i < count; i++) c.at(row + i, 0) = results[i];
  }
}

// Applies `function` to the vectors of A, of B, which has its shape, and stores the results in A.
template <class Function>
inline void apply(const Panels &a, const Panels &b, int rows, Function function) {
  for (int first = 0; first < a.cols; first += a.width) {
    float *x = a.panel(first);
    const float *y = b.panel(first);
    const long count = long(rows) * a.width;
    for (long i = 0; i < count; i += LANES) store(x + i, function(load(x + i), load(y + i)));
  }
}
