// Attention over the cache, and the projections before and after it.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "step.h"

// A thread's heads are adjacent in the cache: what a head prefetches beyond its own data is where
// the next head of the same thread begins.
static int64_t own_head(const Team& team, int64_t turn, int64_t heads) {
    int64_t threads = team.size();
    return heads % threads ? turn : turn % threads * (heads / threads) + turn / threads;
}

void Step::attention(Team& team, const Sublayer& sublayer, Streams streams) {
    const Attention& a = sublayer.attention;
    const float* input = streams.x;
    if (!model_.header.post) {
        norm(team, streams.x, a.gain, a.shift, space_.normed.get());
        input = space_.normed.get();
    }
    float* qkv = space_.qkv.get();
    if (a.projection == DENSE_QKV) {
        const float* bias = (const float*)a.qkv_bias.data;
        int64_t width = a.width();
        matmul(team, a.qkv, input, dim_, tokens_, qkv, width,
               [&](int64_t t, int64_t first, int64_t last) {
                   if (bias)
                       for (int64_t r = first; r < last; r++) qkv[t * width + r] += bias[r];
               });
        team.barrier();
        mark(team, P_QKV, a.qkv.bytes());
    } else {
        if (model_.header.post) {
            for (int64_t t; (t = team.next()) < tokens_;)
                std::memcpy(space_.normed.get() + t * dim_, input + t * dim_, dim_ * 4);
            team.barrier();
        }
        if (a.projection == CONVOLVED_QKV)
            convolved_qkv(team, sublayer);
        else
            factored_qkv(team, a);
    }
    int64_t group = a.heads / a.kv_heads, items = tokens_ * a.kv_heads;
    float scale = 1.0f / std::sqrt((float)a.head_dim);
    for (int64_t item; (item = team.next()) < items;) {
        int64_t t = item / a.kv_heads, head = item % a.kv_heads;
        float* row = qkv + t * a.width();
        float* key = row + a.q_width() + head * a.head_dim;
        rotate(a, t, key);
        session_.rows[call_.rows[t]].caches[sublayer.index].write(positions_[t], head, key,
                                                                 key + a.kv_width());
        for (int64_t g = head * group; g < (head + 1) * group; g++) {
            rotate(a, t, row + g * a.head_dim);
            for (int64_t i = 0; i < a.head_dim; i++) row[g * a.head_dim + i] *= scale;
        }
    }
    team.barrier();
    float* out = a.out ? space_.heads.get() : streams.into;
    for (int64_t item; (item = team.next()) < items;)
        attend(team, a, sublayer, item / a.kv_heads, own_head(team, item % a.kv_heads, a.kv_heads), out);
    team.barrier();
    int64_t read = 0;
    for (int64_t t = 0; t < tokens_; t++) {
        const Cache& cache = session_.rows[call_.rows[t]].caches[sublayer.index];
        read += cache.visible(positions_[t]) * cache.token_bytes();
    }
    mark(team, P_ATTENTION, read);
    if (a.out) {
        add(team, a.out, a.out_bias, space_.heads.get(), streams.into);
        mark(team, P_OUT, a.out.bytes());
    }
}

void Step::rotate(const Attention& a, int64_t token, float* x) const {
    if (!model_.header.rotation) return;
    int64_t half = a.head_dim / 2;
    const float *cos = space_.turns.get() + token * a.head_dim, *sin = cos + half;
    bool neighbours = model_.header.rotation == NEIGHBOURS;
    for (int64_t p = 0; p < half; p++) {
        float* one = x + (neighbours ? 2 * p : p);
        float* two = x + (neighbours ? 2 * p + 1 : p + half);
        float a1 = *one, a2 = *two;
        *one = a1 * cos[p] - a2 * sin[p];
        *two = a2 * cos[p] + a1 * sin[p];
    }
}

// Rows first .. first + run, four distant ones at a time: with wide rows, four streams use more of
// the memory bandwidth than one.
static const int32_t* far_rows(std::vector<int32_t>& order, int64_t first, int64_t run) {
    order.resize(std::max<size_t>(order.size(), PAGE + 2));
    int32_t* made = order.data();
    int32_t* key = made + PAGE;  // which list this is
    if (key[0] == first && key[1] == run) return made;
    int64_t part = run / 4, at = 0;
    for (int64_t i = 0; i < part; i++)
        for (int64_t stream = 0; stream < 4; stream++) made[at++] = (int32_t)(first + stream * part + i);
    for (int64_t i = 4 * part; i < run; i++) made[at++] = (int32_t)(first + i);
    key[0] = (int32_t)first;
    key[1] = (int32_t)run;
    return made;
}

// The query heads of one key head: two short runs of keys (sinks, then the rest), page by page.
void Step::attend(Team& team, const Attention& a, const Sublayer& sublayer, int64_t token,
                  int64_t head, float* out) {
    const Cache& cache = session_.rows[call_.rows[token]].caches[sublayer.index];
    int64_t position = positions_[token], group = a.heads / a.kv_heads, d = a.head_dim;
    int64_t sinks = cache.sinks(position), count = cache.visible(position);
    const float* q = space_.qkv.get() + token * a.width() + head * group * d;
    std::vector<float>& scores = space_.scores[team.id()];
    scores.resize(std::max<size_t>(scores.size(), group * (count + d)));
    auto pages = [&](auto&& visit) {
        int64_t done = 0;
        for (auto [from, to] : {std::pair(int64_t(0), sinks), std::pair(cache.first(position), position + 1)})
            for (int64_t at = from; at < to;) {
                int64_t run = cache.run(at, to), slot = cache.slot(at);
                visit(slot, slot % PAGE, run, done);
                at += run;
                done += run;
            }
    };
    std::vector<int32_t>& order = space_.far[team.id()];
    pages([&](int64_t slot, int64_t first, int64_t run, int64_t done) {
        Matrix keys = cache.keys(slot, head);
        if (group == 1 && keys.dtype == FLOAT32)
            kernels_.dot_rows(keys, q, far_rows(order, first, run), run, &scores[done]);
        else
            kernels_.dot(keys, q, d, group, first, first + run, &scores[done], count);
    });
    float* sums = &scores[group * count];
    std::fill(sums, sums + group * d, 0.0f);
    for (int64_t g = 0; g < group; g++) {
        float* weights = &scores[g * count];
        float total = kernels_.softmax(weights, count);
        pages([&](int64_t slot, int64_t first, int64_t run, int64_t done) {
            Matrix values = cache.values(slot, head);
            if (group == 1 && values.dtype == FLOAT32)
                return kernels_.add_rows(values, far_rows(order, first, run), weights + done, run, 0,
                                         d, sums);
            values.data = (const char*)values.data + first * d * values.width();
            if (values.scales) values.scales += first;
            kernels_.add_rows(values, nullptr, weights + done, run, 0, d, sums + g * d);
        });
        float* y = out + token * a.q_width() + (head * group + g) * d;
        for (int64_t i = 0; i < d; i++) {
            float value = sums[g * d + i] / total;
            if (a.out)
                y[i] = value;
            else
                y[i] += value;  // no output matrix: straight into the residual stream
        }
    }
}

// packed[k, r] = x_k D[k, s] scales[k] for `count` rows, which are (token, module), and k from first to last.
void Step::pack_factors(const float* x, const Matrix& d, const float* scales, int64_t row,
                        int64_t count, int64_t first, int64_t last, float* packed) const {
    int64_t modules = d.cols;
    const float* factors = (const float*)d.data + first * modules;
    for (int64_t r = 0; r < count;) {  // a token's rows at a time
        int64_t t = (row + r) / modules, s = (row + r) % modules;
        int64_t here = std::min(count - r, modules - s);
        kernels_.strip(x + t * dim_ + first, scales ? scales + first : nullptr, factors + s, modules,
                       last - first, (int)here, packed + r);
        r += here;
    }
}

// y (tokens, modules, panels) of the normed tokens: y[s, m] = sum_i x_i D[i, s] E[i, m] + bias.
void Step::multiply(Team& team, const Factored& f, float* y,
                    const std::function<void(int64_t first, int64_t last)>& after) {
    int64_t modules = f.modules.cols, each = f.each(), rows = tokens_ * modules;
    const float* bias = (const float*)f.bias.data;
    auto pack = [&](int64_t row, int64_t count, int64_t first, int64_t last, float* packed) {
        pack_factors(space_.normed.get(), f.modules, f.mix.scales, row, count, first, last, packed);
    };
    panels(team, f.mix, rows, pack, y, [&](int64_t first, int64_t last) {
        for (int64_t row = first; bias && row < last; row++)
            for (int64_t m = 0; m < each; m++)
                y[row * f.mix.cols + m] += bias[row % modules * each + m];
        after(first, last);
    });
    mark(team, P_MULT, f.mix.bytes() + f.modules.bytes());
}

void Step::factored_qkv(Team& team, const Attention& a) {
    float *y = space_.mixed.get(), *qkv = space_.qkv.get();
    int64_t offset = 0;
    for (const Factored* f : {&a.q, &a.k, &a.v}) {
        int64_t modules = f->modules.cols, each = f->each();
        multiply(team, *f, y, [&](int64_t first, int64_t last) {
            for (int64_t row = first; row < last; row++)
                std::memcpy(qkv + row / modules * a.width() + offset + row % modules * each,
                            y + row * f->mix.cols, each * 4);
        });
        offset += f->width;
    }
}

// q, k and v by causal convolutions over (tokens, modules), the same for every module.
void Step::convolved_qkv(Team& team, const Sublayer& sublayer) {
    const Attention& a = sublayer.attention;
    int64_t modules = a.q.modules.cols, each = a.q.each(), wide = a.q.mix.cols;
    int64_t rows = tokens_ * modules;
    float *mixed = space_.mixed.get(), *conv = space_.conv.get(), *qkv = space_.qkv.get();
    multiply(team, a.q, mixed, [](int64_t, int64_t) {});
    std::vector<const float*> from = sources(sublayer);
    // Copies columns `skip` on of a convolution's rows to q, k or v.
    auto spread = [&](const float* y, int64_t stride, int64_t skip, const Matrix& b, int64_t part,
                      int64_t offset, int64_t first, int64_t last) {
        const float* shift = (const float*)b.data;
        for (int64_t row = first; row < last; row++)
            for (int64_t m = 0; m < each; m++)
                qkv[row / modules * 3 * dim_ + part * dim_ + row % modules * each + m] =
                    y[row * stride + skip + m] + (shift ? shift[offset + m] : 0.0f);
    };
    panels(team, a.conv_qk, rows,
           [&](int64_t row, int64_t count, int64_t first, int64_t last, float* packed) {
               gather_inputs(a, from, a.span, a.conv_qk, row, count, first, last, packed);
           },
           conv, [&](int64_t first, int64_t last) {
               spread(conv, 2 * wide, 0, a.conv_qk_bias, 0, 0, first, last);
               spread(conv, 2 * wide, wide, a.conv_qk_bias, 1, each, first, last);
           });
    float* third = conv + rows * 2 * wide;
    panels(team, a.conv_v, rows,
           [&](int64_t row, int64_t count, int64_t first, int64_t last, float* packed) {
               gather_inputs(a, from, 1, a.conv_v, row, count, first, last, packed);
           },
           third, [&](int64_t first, int64_t last) {
               spread(third, wide, 0, a.conv_v_bias, 2, 0, first, last);
           });
    if (team.id() == 0)  // the last inputs of each sequence, for its next call
        for (int64_t t = 0; t < tokens_; t++) {
            std::vector<float>& kept = session_.rows[call_.rows[t]].inputs[sublayer.index];
            if (kept.empty()) break;
            std::memmove(kept.data(), kept.data() + dim_, (kept.size() - dim_) * 4);
            for (int64_t s = 0; s < modules; s++)
                std::memcpy(&kept[kept.size() - dim_ + s * each], mixed + (t * modules + s) * wide,
                            each * 4);
        }
    mark(team, P_CONV, a.conv_qk.bytes() + a.conv_v.bytes());
}

// Where the convolution of each token finds its inputs: (tokens, length), oldest first; an earlier
// call's inputs have modules `each` wide, this call's have them padded to panels.
std::vector<const float*> Step::sources(const Sublayer& sublayer) const {
    const Attention& a = sublayer.attention;
    std::vector<const float*> found;
    for (int64_t t = 0; t < tokens_; t++)
        for (int64_t l = 0; l < a.length; l++) {
            int64_t back = a.length - 1 - l;
            if (back <= places_[t]) {
                found.push_back(space_.mixed.get() + (t - back) * a.q.modules.cols * a.q.mix.cols);
            } else {
                const auto& kept = session_.rows[call_.rows[t]].inputs[sublayer.index];
                found.push_back(kept.data() + (a.length - 1 - (back - places_[t])) * dim_);
            }
        }
    return found;
}

void Step::gather_inputs(const Attention& a, const std::vector<const float*>& sources, int64_t span,
                         const Matrix& b, int64_t begin, int64_t count, int64_t first, int64_t last,
                         float* packed) {
    int64_t modules = a.q.modules.cols, each = dim_ / modules;
    for (int64_t r = 0; r < count; r++) {
        int64_t row = begin + r, t = row / modules;
        for (int64_t k = first; k < last;) {
            int64_t l = k / (span * each), shift = k / each % span - span / 2, m = k % each;
            int64_t s = row % modules + shift, run = std::min(last - k, each - m);
            const float* source = sources[t * a.length + l];
            bool here = a.length - 1 - l <= places_[t];
            source += s * (here ? a.q.mix.cols : each) + m;
            float* to = packed + (k - first) * STRIP + r;
            if (s < 0 || s >= modules)
                for (int64_t i = 0; i < run; i++) to[i * STRIP] = 0.0f;
            else if (b.scales)
                for (int64_t i = 0; i < run; i++) to[i * STRIP] = source[i] * b.scales[k + i];
            else
                for (int64_t i = 0; i < run; i++) to[i * STRIP] = source[i];
            k += run;
        }
    }
}
