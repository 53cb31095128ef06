// Keys and values of one sequence in one layer: pages of 256 tokens, allocated on demand.
// A window is a ring buffer, so its memory does not grow.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels.h"

constexpr int64_t PAGE = 256;
constexpr int64_t MOST_TOKENS = 128;  // of one call

struct Free {
    void operator()(void* p) const { std::free(p); }
};
template <class T>
using Block = std::unique_ptr<T[], Free>;

void* allocate(int64_t bytes);  // aligned, in huge pages where it is large; throws std::bad_alloc

template <class T>
Block<T> block(int64_t count) {
    return Block<T>((T*)allocate(std::max<int64_t>(count, 1) * (int64_t)sizeof(T)));
}

class Cache {
  public:
    Cache(Dtype dtype, int64_t heads, int64_t head_dim, int64_t window, int64_t sinks);
    Cache(const Cache& other);  // a deep copy
    Cache(Cache&&) = default;

    void reserve(int64_t tokens);  // room for positions below this
    void write(int64_t position, int64_t head, const float* key, const float* value);
    Matrix keys(int64_t slot, int64_t head) const { return part(slot, head, 0); }
    Matrix values(int64_t slot, int64_t head) const { return part(slot, head, 1); }
    int64_t bytes() const { return (int64_t)pages_.size() * page_bytes(); }
    int64_t token_bytes() const;  // keys and values of one token, all heads

    // The slot of a position, and how many positions follow it in the same page.
    int64_t slot(int64_t position) const;
    int64_t run(int64_t position, int64_t end) const;

    // The first position besides the sinks that a query at `position` reads.
    int64_t first(int64_t position) const {
        return window_ ? std::max<int64_t>(position - window_ + 1, 0) : 0;
    }
    int64_t sinks(int64_t position) const { return std::min(sinks_, first(position)); }
    int64_t visible(int64_t position) const {
        return sinks(position) + position + 1 - first(position);
    }

  private:
    Matrix part(int64_t slot, int64_t head, int which) const;
    int64_t page_bytes() const;

    Dtype dtype_;
    int64_t heads_, head_dim_, window_, sinks_, ring_, width_;
    std::vector<Block<char>> pages_;
};
