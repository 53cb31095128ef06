#include "cache.h"

#include <cmath>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

void* allocate(int64_t bytes) {
    constexpr int64_t huge = 2 << 20;
    int64_t unit = bytes >= huge ? huge : 64;
    void* p = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (!p) throw std::bad_alloc();
#if defined(__linux__)
    if (unit == huge) madvise(p, (bytes + unit - 1) / unit * unit, MADV_HUGEPAGE);
#endif
    return p;
}

Cache::Cache(Dtype dtype, int64_t heads, int64_t head_dim, int64_t window, int64_t sinks)
    : dtype_(dtype), heads_(heads), head_dim_(head_dim), window_(window), sinks_(sinks) {
    ring_ = window + MOST_TOKENS - 1;  // a call does not overwrite what its first token reads
    width_ = dtype == FLOAT32 ? 4 : dtype == BFLOAT16 ? 2 : 1;
}

Cache::Cache(const Cache& other)
    : dtype_(other.dtype_), heads_(other.heads_), head_dim_(other.head_dim_),
      window_(other.window_), sinks_(other.sinks_), ring_(other.ring_), width_(other.width_) {
    for (const auto& page : other.pages_) {
        pages_.push_back(block<char>(page_bytes()));
        std::memcpy(pages_.back().get(), page.get(), page_bytes());
    }
}

int64_t Cache::page_bytes() const {
    return 2 * heads_ * PAGE * (head_dim_ * width_ + (dtype_ == INT8 ? 4 : 0));
}

int64_t Cache::token_bytes() const { return page_bytes() / PAGE; }

int64_t Cache::slot(int64_t position) const {
    if (!window_ || position < sinks_) return position;
    return sinks_ + (position - sinks_) % ring_;
}

int64_t Cache::run(int64_t position, int64_t end) const {
    int64_t at = slot(position), count = std::min(end - position, PAGE - at % PAGE);
    if (!window_) return count;
    int64_t limit = position < sinks_ ? sinks_ - position : sinks_ + ring_ - at;
    return std::min(count, limit);
}

void Cache::reserve(int64_t tokens) {
    int64_t slots = window_ ? std::min(tokens, sinks_ + ring_) : tokens;
    while ((int64_t)pages_.size() * PAGE < slots) pages_.push_back(block<char>(page_bytes()));
}

Matrix Cache::part(int64_t slot, int64_t head, int which) const {
    char* page = pages_[slot / PAGE].get();
    int64_t numbers = (which * heads_ + head) * PAGE;
    Matrix m;
    m.dtype = dtype_;
    m.rows = PAGE;
    m.cols = head_dim_;
    m.data = page + numbers * head_dim_ * width_;
    if (dtype_ == INT8) m.scales = (float*)(page + 2 * heads_ * PAGE * head_dim_) + numbers;
    return m;
}

static uint16_t bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 64);  // NaN stays NaN
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);  // to nearest, ties to even
}

static void put(const Matrix& m, int64_t row, const float* x) {
    int64_t n = m.cols;
    if (m.dtype == FLOAT32) {
        std::memcpy((float*)m.data + row * n, x, n * 4);
    } else if (m.dtype == BFLOAT16) {
        for (int64_t i = 0; i < n; i++) ((uint16_t*)m.data)[row * n + i] = bfloat16(x[i]);
    } else {
        float largest = 0;
        for (int64_t i = 0; i < n; i++) largest = std::max(largest, std::fabs(x[i]));
        float scale = largest > 0 ? largest / 127 : 1.0f;
        ((float*)m.scales)[row] = scale;
        for (int64_t i = 0; i < n; i++)
            ((int8_t*)m.data)[row * n + i] =
                (int8_t)std::lrint(std::min(127.0f, std::max(-127.0f, x[i] / scale)));
    }
}

void Cache::write(int64_t position, int64_t head, const float* key, const float* value) {
    int64_t at = slot(position);
    put(keys(at, head), at % PAGE, key);
    put(values(at, head), at % PAGE, value);
}
