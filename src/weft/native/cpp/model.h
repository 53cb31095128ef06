// A model in memory: the file's tables, checked, with pointers into the file.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "format.h"
#include "kernels.h"

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A multiplicative map: y[s, m] = sum_i x_i modules[i, s] mix[i, m] + bias[s, m].
struct Factored {
    Matrix modules, mix, bias;
    int64_t width = 0;  // of y: modules times the width of each
    int64_t each() const { return width / modules.cols; }
};

struct Attention {
    Matrix gain, shift, qkv, qkv_bias, conv_qk, conv_qk_bias, conv_v, conv_v_bias, out, out_bias;
    Factored q, k, v;  // convolved: q is the shared map
    int64_t heads, kv_heads, head_dim, window, sinks, projection, length, span;
    int64_t q_width() const { return heads * head_dim; }
    int64_t kv_width() const { return kv_heads * head_dim; }
    int64_t width() const { return q_width() + 2 * kv_width(); }
};

struct FeedForward {
    Matrix gain, shift, hidden, hidden_bias, gate, gate_bias, out, out_bias, low, logits,
        logits_bias;
    Matrix sru_gain, sru_shift, sru_in, sru_in_bias, sru_gates, sru_gates_bias, sru_out,
        sru_out_bias;
    int64_t variant, activation, block, sru;
    int64_t units() const { return hidden.rows; }
    int64_t blocks() const { return units() / block; }
};

struct Sublayer {
    Kind kind;
    int index;  // among those of its kind
    Attention attention;
    FeedForward feedforward;
};

struct Model {
    Header header;
    std::vector<Sublayer> sublayers;
    Matrix table, places, enter_gain, enter_shift, gain, shift, output, output_modules, output_bias;
    int attentions = 0, feedforwards = 0;
    int64_t head_dim = 0;  // of the first attention
    std::vector<double> waves, turns;  // angles per position: of sinusoids, of rotations

    Model(const void* data, uint64_t bytes);  // throws Error
    int64_t dim() const { return header.dim; }
    int64_t vocab() const { return header.vocab; }
};
