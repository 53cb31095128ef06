// The kernels of an instruction set: plain functions on arrays, no state, no threads.
#pragma once

#include <cstdint>

enum Dtype : uint32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

// Rows of numbers; row r of an INT8 matrix is multiplied by scales[r].
struct Matrix {
    const void* data = nullptr;
    const float* scales = nullptr;
    Dtype dtype = FLOAT32;
    int64_t rows = 0, cols = 0;

    int64_t width() const { return dtype == FLOAT32 ? 4 : dtype == BFLOAT16 ? 2 : 1; }
    int64_t bytes() const { return rows * (cols * width() + (dtype == INT8 ? 4 : 0)); }
    explicit operator bool() const { return data != nullptr; }
};

constexpr int PANEL = 16;  // columns of a panel
constexpr int STRIP = 16;  // rows of the packed left operand that are adjacent: a cache line
constexpr int64_t DEPTH = 256;  // rows of a panel that stay in the L1 cache

struct Kernels {
    const char* level;
    int tile;  // rows of a strip that `panel` takes at a time
    // y[t * ystride + r - first] = W_r . x_t for r in [first, last), t < tokens
    void (*dot)(const Matrix& w, const float* x, int64_t xstride, int64_t tokens, int64_t first,
                int64_t last, float* y, int64_t ystride);
    // y[j] = W_{index[j]} . x
    void (*dot_rows)(const Matrix& w, const float* x, const int32_t* index, int64_t count, float* y);
    // y[c - first] += sum_j weight[j] * W_{index[j], c}; index == nullptr: row j
    void (*add_rows)(const Matrix& w, const int32_t* index, const float* weight, int64_t count,
                     int64_t first, int64_t last, float* y);
    // a[k * STRIP + r] = x[k] * scales[k] * d[k * stride + r] for k < count, r < rows; scales or nullptr
    void (*strip)(const float* x, const float* scales, const float* d, int64_t stride,
                  int64_t count, int rows, float* a);
    // c[r * cstride + 0..15] = or += sum_k a[k * STRIP + r] * panel p of b, rows first..last of b,
    // for r < rows; prefetches the part-th of `parts` equal shares of the rows after `last`
    void (*panel)(const Matrix& b, int64_t p, int64_t first, int64_t last, const float* a, int rows,
                  float* c, int64_t cstride, bool add, int64_t part, int64_t parts);
    // scores -> e^(scores - largest); returns their sum
    float (*softmax)(float* scores, int64_t count);
    // y = (x - mean) / sqrt(var + eps) * gain + shift, or x / sqrt(mean square + eps) * gain
    void (*norm)(const float* x, const float* gain, const float* shift, int64_t n, float eps,
                 bool rms, float* y);
    // adds up numbers: measures how fast memory can be read
    float (*read)(const float* data, int64_t count);
};

const Kernels* best_kernels();                    // the widest that this machine runs
const Kernels* kernels_named(const char* level);  // nullptr: unknown, or not for this machine
