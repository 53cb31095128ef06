// Feed-forwards: dense, gated, and sparse ones that read only the chosen rows.
#include <algorithm>
#include <cmath>

#include "step.h"

void activate(float* x, int64_t count, int64_t activation) {
    auto each = [&](auto f) {
        for (int64_t i = 0; i < count; i++) x[i] = f(x[i]);
    };
    switch (activation) {
        case RELU: return each([](float v) { return v > 0 ? v : 0.0f; });
        case GELU: return each([](float v) { return 0.5f * v * (1 + std::erf(v * 0.70710678f)); });
        case GELU_TANH:
            return each([](float v) {
                return 0.5f * v * (1 + std::tanh(0.79788456f * (v + 0.044715f * v * v * v)));
            });
        case SILU: return each([](float v) { return v / (1 + std::exp(-v)); });
        case SIGMOID: return each([](float v) { return 1 / (1 + std::exp(-v)); });
        case SQUARED_RELU: return each([](float v) { return v > 0 ? v * v : 0.0f; });
        case ELU: return each([](float v) { return v > 0 ? v : std::expm1(v); });
        case SELU:
            return each([](float v) {
                return 1.0507009873554805f * (v > 0 ? v : 1.6732632423543772f * std::expm1(v));
            });
        case SOFTPLUS: return each([](float v) { return v > 20 ? v : std::log1p(std::exp(v)); });
        default: return;  // LINEAR
    }
}

void Step::feedforward(Team& team, const Sublayer& sublayer, Streams streams) {
    const FeedForward& f = sublayer.feedforward;
    if (model_.header.post) {
        for (int64_t t; (t = team.next()) < tokens_;)
            std::copy(streams.x + t * dim_, streams.x + (t + 1) * dim_, space_.normed.get() + t * dim_);
        team.barrier();
    } else {
        norm(team, streams.x, f.gain, f.shift, space_.normed.get());
    }
    if (f.sru) sru(team, sublayer, streams.into);
    if (f.variant == SPARSE_FF)
        sparse(team, f, streams.into);
    else
        dense(team, f, streams.into);
}

void Step::dense(Team& team, const FeedForward& f, float* into) {
    float *hidden = space_.hidden.get(), *gate = space_.gate.get();
    int64_t units = f.units();
    const float *x = space_.normed.get(), *bias = (const float*)f.hidden_bias.data;
    bool gated = f.variant == GATED_FF;
    matmul(team, f.hidden, x, dim_, tokens_, hidden, units, [&](int64_t t, int64_t first, int64_t last) {
        float* h = hidden + t * units;
        if (bias)
            for (int64_t r = first; r < last; r++) h[r] += bias[r];
        activate(h + first, last - first, f.activation);
    });
    team.barrier();
    if (gated) {
        const float* shift = (const float*)f.gate_bias.data;
        matmul(team, f.gate, x, dim_, tokens_, gate, units, [&](int64_t t, int64_t first, int64_t last) {
            for (int64_t i = t * units + first; i < t * units + last; i++)
                hidden[i] *= gate[i] + (shift ? shift[i - t * units] : 0.0f);
        });
        team.barrier();
    }
    add(team, f.out, f.out_bias, hidden, into);
    mark(team, P_FEEDFORWARD, f.hidden.bytes() + (gated ? f.gate.bytes() : 0) + f.out.bytes());
}

// The controller's logits of some blocks, their largest unit, and the value of that unit.
void Step::choose(Team& team, const FeedForward& f, int64_t token, int64_t first, int64_t last) {
    std::vector<float>& logits = space_.logits[team.id()];
    int64_t count = (last - first) * f.block, blocks = f.blocks();
    logits.resize(std::max<size_t>(logits.size(), count));
    kernels_.dot(f.logits, space_.low.get() + token * f.low.rows, 0, 1, first * f.block,
                 last * f.block, logits.data(), count);
    const float* bias = (const float*)f.logits_bias.data;
    if (bias)
        for (int64_t i = 0; i < count; i++) logits[i] += bias[first * f.block + i];
    int32_t* chosen = space_.chosen.get() + token * blocks;
    for (int64_t b = first; b < last; b++)
        chosen[b] = (int32_t)(b * f.block) + argmax(&logits[(b - first) * f.block], f.block);
    float* active = space_.active.get() + token * blocks;
    kernels_.dot_rows(f.hidden, space_.normed.get() + token * dim_, chosen + first, last - first,
                      active + first);
    if (f.hidden_bias)
        for (int64_t b = first; b < last; b++) active[b] += ((const float*)f.hidden_bias.data)[chosen[b]];
    activate(active + first, last - first, RELU);
}

void Step::sparse(Team& team, const FeedForward& f, float* into) {
    matmul(team, f.low, space_.normed.get(), dim_, tokens_, space_.low.get(), f.low.rows, nullptr);
    team.barrier();
    mark(team, P_CONTROLLER, f.low.bytes());
    int64_t blocks = f.blocks(), pieces = 8 * team.size();
    int64_t piece = std::max<int64_t>((blocks + pieces - 1) / pieces, 1);
    piece = (piece + 3) / 4 * 4;
    int64_t each = (blocks + piece - 1) / piece;
    for (int64_t item; (item = team.next()) < tokens_ * each;) {
        int64_t first = item % each * piece;
        choose(team, f, item / each, first, std::min(first + piece, blocks));
    }
    team.barrier();
    // Columns are divided among threads, so that the order of the sum over rows is fixed.
    int64_t slices = team.size(), slice = ((dim_ + slices - 1) / slices + 15) / 16 * 16, live = 0;
    std::vector<int32_t>& rows = space_.picked[team.id()];
    std::vector<float>& weights = space_.scores[team.id()];
    rows.resize(std::max<size_t>(rows.size(), blocks));
    weights.resize(std::max<size_t>(weights.size(), blocks));
    int64_t first = std::min(team.id() * slice, dim_), last = std::min(first + slice, dim_);
    for (int64_t t = 0; t < tokens_; t++) {
        int64_t count = 0;
        for (int64_t b = t * blocks; b < (t + 1) * blocks; b++)
            if (space_.active[b] != 0) {  // rows of units that are 0 are not read
                rows[count] = space_.chosen[b];
                weights[count++] = space_.active[b];
            }
        float* y = into + t * dim_ + first;
        kernels_.add_rows(f.out, rows.data(), weights.data(), count, first, last, y);
        if (f.out_bias)
            for (int64_t i = first; i < last; i++) y[i - first] += ((const float*)f.out_bias.data)[i];
        live += count;
    }
    team.barrier();
    mark(team, P_FEEDFORWARD, f.logits.bytes() + tokens_ * blocks * (f.hidden.bytes() / f.units()) +
                                  live * (f.out.bytes() / f.units()));
}

// LayerNorm, narrow, recurrence, wide, added to the feed-forward's result: feedforward/with_sru.py.
void Step::sru(Team& team, const Sublayer& sublayer, float* into) {
    const FeedForward& f = sublayer.feedforward;
    const Header& h = model_.header;
    int64_t n = f.sru;
    if (team.id() == 0)
        for (int64_t t = 0; t < tokens_; t++) {
            const float* x = space_.normed.get() + t * dim_;
            float *in = space_.hidden.get() + t * 4 * n, *gates = in + n;
            std::vector<float>& input = space_.scores[0];
            input.resize(std::max<size_t>(input.size(), dim_));
            if (f.sru_gain) {
                kernels_.norm(x, (const float*)f.sru_gain.data, (const float*)f.sru_shift.data, dim_,
                              1e-5f, false, input.data());
                x = input.data();
            }
            auto affine = [&](const Matrix& w, const Matrix& b, const float* from, float* to) {
                kernels_.dot(w, from, 0, 1, 0, w.rows, to, w.rows);
                if (b)
                    for (int64_t i = 0; i < w.rows; i++) to[i] += ((const float*)b.data)[i];
            };
            affine(f.sru_in, f.sru_in_bias, x, in);
            affine(f.sru_gates, f.sru_gates_bias, in, gates);
            std::vector<float>& c = session_.rows[call_.rows[t]].memory[sublayer.index];
            activate(gates, 2 * n, SIGMOID);
            for (int64_t i = 0; i < n; i++) {
                float reset = gates[i], forget = gates[n + i];
                c[i] = forget * c[i] + (1 - forget) * gates[2 * n + i];
                in[i] = reset * c[i] + (1 - reset) * in[i] * (float)h.sru_scale;
            }
            affine(f.sru_out, f.sru_out_bias, in, input.data());
            for (int64_t i = 0; i < dim_; i++) into[t * dim_ + i] += input[i];
        }
    team.barrier();
    mark(team, P_SRU, f.sru_in.bytes() + f.sru_gates.bytes() + f.sru_out.bytes());
}
