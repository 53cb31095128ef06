// The kernels, compiled once per instruction set.
#include "kernels.h"

#include <math.h>

#include <type_traits>

#include "lanes.h"

namespace WEFT_LEVEL {

constexpr int64_t AHEAD = 2048;  // bytes to prefetch ahead

template <class T>
inline void prefetch(const T* p) {
    __builtin_prefetch((const char*)p + AHEAD);
}

// out[r][x] = rows[r] . x_x: R rows against X vectors.
// `jump`: numbers from the end of a row to the row that is read after it.
template <class T, int R, int X>
inline void dots(const T* const* rows, const float* x, int64_t xstride, int64_t n, int64_t jump,
                 float* out) {
    Vec sums[R][X] = {};
    constexpr int LINE = most<int>(LANES, 64 / sizeof(T));  // numbers in a cache line
    int64_t i = 0;
    for (; i + LINE <= n; i += LINE) {
        int64_t ahead = i + AHEAD / (int64_t)sizeof(T) < n ? i : i + jump;
        for (int r = 0; r < R; r++) prefetch(rows[r] + ahead);
#pragma GCC unroll 8
        for (int j = 0; j < LINE; j += LANES)
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) {
                Vec w = load(rows[r] + i + j);
#pragma GCC unroll 4
                for (int t = 0; t < X; t++) sums[r][t] += w * load(x + t * xstride + i + j);
            }
    }
    for (; i + LANES <= n; i += LANES)
        for (int r = 0; r < R; r++) {
            Vec w = load(rows[r] + i);
            for (int t = 0; t < X; t++) sums[r][t] += w * load(x + t * xstride + i);
        }
    if constexpr (R == 4 && X == 1)
        sums_of_four(sums[0], out);
    else
        for (int r = 0; r < R; r++)
            for (int t = 0; t < X; t++) out[r * X + t] = sum(sums[r][t]);
    for (int r = 0; i < n && r < R; r++)
        for (int t = 0; t < X; t++)
            for (int64_t k = i; k < n; k++) out[r * X + t] += one(rows[r][k]) * x[t * xstride + k];
}

template <class T, int R, int X>
void dot_tile(const Matrix& w, const float* x, int64_t xstride, int64_t row, float* y,
              int64_t ystride) {
    const T* rows[R];
    for (int r = 0; r < R; r++) rows[r] = (const T*)w.data + (row + r) * w.cols;
    float out[R * X];
    dots<T, R, X>(rows, x, xstride, w.cols, (R - 1) * w.cols, out);
    for (int r = 0; r < R; r++) {
        float scale = w.scales ? w.scales[row + r] : 1.0f;
        for (int t = 0; t < X; t++) y[t * ystride + r] = out[r * X + t] * scale;
    }
}

template <class T, int X>
void dot_tokens(const Matrix& w, const float* x, int64_t xstride, int64_t first, int64_t last,
                float* y, int64_t ystride) {
    constexpr int R = X == 4 ? 3 : 4;
    int64_t row = first;
    for (; row + R <= last; row += R)
        dot_tile<T, R, X>(w, x, xstride, row, y + row - first, ystride);
    for (; row < last; row++) dot_tile<T, 1, X>(w, x, xstride, row, y + row - first, ystride);
}

template <class T>
void dot(const Matrix& w, const float* x, int64_t xstride, int64_t tokens, int64_t first,
         int64_t last, float* y, int64_t ystride) {
    if (tokens == 1) return dot_tokens<T, 1>(w, x, xstride, first, last, y, ystride);
    // A few rows at a time stay in the L1 cache while all tokens are multiplied by them.
    for (int64_t row = first; row < last; row += 12) {
        int64_t end = least(row + 12, last), t = 0;
        float* at = y + row - first;
        for (; t + 4 <= tokens; t += 4)
            dot_tokens<T, 4>(w, x + t * xstride, xstride, row, end, at + t * ystride, ystride);
        for (; t < tokens; t++)
            dot_tokens<T, 1>(w, x + t * xstride, xstride, row, end, at + t * ystride, ystride);
    }
}

template <class T>
void dot_rows(const Matrix& w, const float* x, const int32_t* index, int64_t count, float* y) {
    constexpr int R = 4;
    for (int64_t j = 0; j < count; j += R) {
        int here = (int)least<int64_t>(R, count - j);
        const T* rows[R];
        for (int r = 0; r < R; r++)
            rows[r] = (const T*)w.data + (int64_t)index[j + least(r, here - 1)] * w.cols;
        float out[R];
        if (here == R)
            dots<T, R, 1>(rows, x, 0, w.cols, 0, out);
        else
            for (int r = 0; r < here; r++) dots<T, 1, 1>(rows + r, x, 0, w.cols, 0, out + r);
        for (int r = 0; r < here; r++)
            y[j + r] = w.scales ? out[r] * w.scales[index[j + r]] : out[r];
    }
}

template <class T, int R>
inline void add_tile(const T* const* rows, const float* weight, int64_t n, float* y) {
    Vec factor[R];
    for (int r = 0; r < R; r++) factor[r] = all(weight[r]);
    int64_t i = 0;
    constexpr int LINE = most<int>(LANES, 64 / sizeof(T));
    for (; i + LINE <= n; i += LINE) {
        for (int r = 0; r < R; r++) prefetch(rows[r] + i);
#pragma GCC unroll 8
        for (int j = 0; j < LINE; j += LANES) {
            Vec total = load(y + i + j);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) total += factor[r] * load(rows[r] + i + j);
            store(y + i + j, total);
        }
    }
    for (; i + LANES <= n; i += LANES) {
        Vec total = load(y + i);
        for (int r = 0; r < R; r++) total += factor[r] * load(rows[r] + i);
        store(y + i, total);
    }
    for (; i < n; i++)
        for (int r = 0; r < R; r++) y[i] += weight[r] * one(rows[r][i]);
}

// Rows that fit into registers, as heads do: their sum stays there from the first row to the last.
template <class T, int VECS>
inline void add_narrow(const Matrix& w, const int32_t* index, const float* weight, int64_t count,
                       int64_t first, float* y) {
    constexpr int LINE = most<int>(LANES, 64 / sizeof(T));
    Vec total[VECS];
    for (int i = 0; i < VECS; i++) total[i] = load(y + i * LANES);
    for (int64_t j = 0; j < count; j++) {
        int64_t row = index ? index[j] : j;
        const T* at = (const T*)w.data + row * w.cols + first;
        for (int i = 0; i < VECS * LANES; i += LINE) prefetch(at + i);
        Vec factor = all(weight[j] * (w.scales ? w.scales[row] : 1.0f));
#pragma GCC unroll 8
        for (int i = 0; i < VECS; i++) total[i] += factor * load(at + i * LANES);
    }
    for (int i = 0; i < VECS; i++) store(y + i * LANES, total[i]);
}

template <class T>
void add_rows(const Matrix& w, const int32_t* index, const float* weight, int64_t count,
              int64_t first, int64_t last, float* y) {
    if (last - first == 4 * LANES) return add_narrow<T, 4>(w, index, weight, count, first, y);
    if (last - first == 8 * LANES) return add_narrow<T, 8>(w, index, weight, count, first, y);
    constexpr int R = 4;
    for (int64_t j = 0; j < count; j += R) {
        int here = (int)least<int64_t>(R, count - j);
        const T* rows[R];
        float factor[R];
        for (int r = 0; r < here; r++) {
            int64_t row = index ? index[j + r] : j + r;
            rows[r] = (const T*)w.data + row * w.cols + first;
            factor[r] = weight[j + r] * (w.scales ? w.scales[row] : 1.0f);
        }
        if (here == R)
            add_tile<T, R>(rows, factor, last - first, y);
        else
            for (int r = 0; r < here; r++) add_tile<T, 1>(rows + r, factor + r, last - first, y);
    }
}

#if defined(__AVX512F__)
constexpr int TILE = 8;
#else
constexpr int TILE = 4;
#endif

static void strip(const float* x, const float* scales, const float* d, int64_t stride,
                  int64_t count, int rows, float* a) {
    for (int64_t k = 0; k < count; k++, d += stride, a += STRIP) {
        float value = scales ? x[k] * scales[k] : x[k];
        if (rows == STRIP)
            for (int r = 0; r < STRIP; r += LANES) store(a + r, value * load(d + r));
        else
            for (int r = 0; r < rows; r++) a[r] = value * d[r];
    }
}

template <class T, int R, bool ASK>
inline void panel_tile(const T* b, int64_t count, const float* a, float* c, int64_t cstride,
                       bool add, const char* soon, int64_t step) {
    constexpr int PARTS = PANEL / LANES;
    Vec sums[R][PARTS] = {};
    for (int64_t k = 0; k < count; k++, b += PANEL, a += STRIP) {
        if (ASK) __builtin_prefetch(soon + k * step);
        Vec row[PARTS];
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) row[part] = load(b + part * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Vec factor = all(a[r]);
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) sums[r][part] += factor * row[part];
        }
    }
    for (int r = 0; r < R; r++)
        for (int part = 0; part < PARTS; part++) {
            float* at = c + r * cstride + part * LANES;
            store(at, add ? load(at) + sums[r][part] : sums[r][part]);
        }
}

// All rows of a strip times numbers in the L1 cache; each prefetches a share of the next ones.
template <class T, bool ASK>
inline void panel_strip(const T* b, int64_t count, const float* a, int rows, float* c,
                        int64_t cstride, bool add, const char* soon, int64_t step) {
    int r = 0;
    auto take = [&](auto tile) {
        for (; r + tile <= rows; r += tile)
            panel_tile<T, tile, ASK>(b, count, a + r, c + r * cstride, cstride, add,
                                     soon + r * count * step, tile * step);
    };
    take(std::integral_constant<int, TILE>());
    take(std::integral_constant<int, 4>());
    take(std::integral_constant<int, 2>());
    take(std::integral_constant<int, 1>());
}

template <class T>
void panel(const Matrix& b, int64_t p, int64_t first, int64_t last, const float* a, int rows,
           float* c, int64_t cstride, bool add, int64_t part, int64_t parts) {
    const T* at = (const T*)b.data + (p * b.rows + first) * PANEL;
    int64_t count = last - first, bytes = PANEL * (int64_t)sizeof(T);
    const char* soon = (const char*)(at + count * PANEL) + part * count * bytes / parts;
    if (sizeof(T) == sizeof(float) || rows <= TILE)
        return panel_strip<T, true>(at, count, a, rows, c, cstride, add, soon,
                                    bytes / parts / rows);
    // Narrow numbers are widened once for all tiles of the strip.
    float wide[DEPTH * PANEL];
    for (int64_t done = 0; done < count; done += DEPTH, a += DEPTH * STRIP) {
        int64_t here = least(DEPTH, count - done);
        for (int64_t k = 0; k < here; k++, at += PANEL) {
            __builtin_prefetch(soon + (done + k) * bytes / parts);
            for (int i = 0; i < PANEL; i += LANES) store(wide + k * PANEL + i, load(at + i));
        }
        panel_strip<float, false>(wide, here, a, rows, c, cstride, add || done, nullptr, 0);
    }
}

#define BY_DTYPE(function, dtype, ...)                                  \
    switch (dtype) {                                                    \
        case FLOAT32: return function<float>(__VA_ARGS__);              \
        case BFLOAT16: return function<uint16_t>(__VA_ARGS__);          \
        case INT8: return function<int8_t>(__VA_ARGS__);                \
    }

static void any_dot(const Matrix& w, const float* x, int64_t xstride, int64_t tokens,
                    int64_t first, int64_t last, float* y, int64_t ystride) {
    BY_DTYPE(dot, w.dtype, w, x, xstride, tokens, first, last, y, ystride)
}
static void any_dot_rows(const Matrix& w, const float* x, const int32_t* index, int64_t count,
                         float* y) {
    BY_DTYPE(dot_rows, w.dtype, w, x, index, count, y)
}
static void any_add_rows(const Matrix& w, const int32_t* index, const float* weight,
                         int64_t count, int64_t first, int64_t last, float* y) {
    BY_DTYPE(add_rows, w.dtype, w, index, weight, count, first, last, y)
}
static void any_panel(const Matrix& b, int64_t p, int64_t first, int64_t last, const float* a,
                      int rows, float* c, int64_t cstride, bool add, int64_t part,
                      int64_t parts) {
    BY_DTYPE(panel, b.dtype, b, p, first, last, a, rows, c, cstride, add, part, parts)
}

static float softmax(float* scores, int64_t count) {
    float top = scores[0];
    int64_t i = 0;
    if (count >= LANES) {
        Vec tops = load(scores);
        for (; i + LANES <= count; i += LANES) {
            Vec v = load(scores + i);
            tops = v > tops ? v : tops;
        }
        for (int l = 0; l < LANES; l++) top = most(top, tops[l]);
    }
    for (; i < count; i++) top = most(top, scores[i]);
    Vec total = {};
    for (i = 0; i + LANES <= count; i += LANES) {
        Vec e = exp_lanes(load(scores + i) - top);
        store(scores + i, e);
        total += e;
    }
    float rest = 0;
    for (; i < count; i++) rest += scores[i] = expf(scores[i] - top);
    return sum(total) + rest;
}

static void norm(const float* x, const float* gain, const float* shift, int64_t n, float eps,
                 bool rms, float* y) {
    float mean = 0;
    int64_t i;
    if (!rms) {
        Vec total = {};
        for (i = 0; i + LANES <= n; i += LANES) total += load(x + i);
        mean = sum(total);
        for (; i < n; i++) mean += x[i];
        mean /= (float)n;
    }
    Vec squares = {};
    for (i = 0; i + LANES <= n; i += LANES) {
        Vec off = load(x + i) - mean;
        squares += off * off;
    }
    float square = sum(squares);
    for (; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    float scale = 1.0f / sqrtf(square / (float)n + eps);
    for (i = 0; i < n; i++) y[i] = (x[i] - mean) * scale * gain[i] + (shift ? shift[i] : 0.0f);
}

static float read(const float* data, int64_t count) {
    // Four streams, as the products read four rows: one alone does not saturate the memory bandwidth.
    int64_t part = count / 4;
    Vec sums[4] = {};
    for (int64_t i = 0; i + LANES <= part; i += LANES)
        for (int j = 0; j < 4; j++) {
            prefetch(data + j * part + i);
            sums[j] += load(data + j * part + i);
        }
    return sum(sums[0] + sums[1] + sums[2] + sums[3]);
}

#define TEXT(name) #name
#define NAME(name) TEXT(name)

extern const Kernels table;
const Kernels table = {NAME(WEFT_LEVEL), TILE,      any_dot, any_dot_rows, any_add_rows,
                       strip,            any_panel, softmax, norm,         read};

}  // namespace WEFT_LEVEL
