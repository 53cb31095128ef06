// The model file: a header, a table of tensors, a table of sublayers, then the numbers.
// Little-endian; every offset counts from the start of the file and is a multiple of 64.
#pragma once

#include <cstdint>

constexpr char MAGIC[8] = {'W', 'E', 'F', 'T', 'N', 'A', 'T', '1'};
constexpr int64_t ALIGNMENT = 64;

struct TensorRecord {
    uint32_t dtype, panels;         // panels: columns are stored in groups of 16
    uint64_t rows, cols;
    uint64_t offset, scales;        // scales: 0 unless int8
};

enum Kind : uint32_t { ATTENTION = 0, FEEDFORWARD = 1 };

constexpr int SUBLAYER_TENSORS = 20, SUBLAYER_NUMBERS = 10;

struct SublayerRecord {
    uint32_t kind, unused;
    int32_t tensors[SUBLAYER_TENSORS];  // -1: none
    int64_t numbers[SUBLAYER_NUMBERS];
};

// Slots of an attention sublayer.
enum AttentionTensor {
    A_GAIN, A_SHIFT,                    // its norm
    A_QKV, A_QKV_BIAS,                  // dense: rows of q, k and v
    A_MODULES, A_MIX, A_MIX_BIAS,       // multiplicative: D (inputs, modules), E panels
    A_CONV_QK, A_CONV_QK_BIAS, A_CONV_V, A_CONV_V_BIAS,   // panels over (length, modules, inputs)
    A_OUT, A_OUT_BIAS,
    A_K_MODULES, A_K_MIX, A_K_MIX_BIAS, A_V_MODULES, A_V_MIX, A_V_MIX_BIAS,  // A_MODULES ..: q's
};
enum AttentionNumber {
    A_HEADS, A_KV_HEADS, A_HEAD_DIM,
    A_WINDOW,                           // 0: all earlier tokens
    A_SINKS,
    A_PROJECTION,                       // Projection
    A_LENGTH, A_SPAN,                   // convolution: tokens, and modules for q and k
};
enum Projection { DENSE_QKV, CONVOLVED_QKV, FACTORED_QKV };

// Slots of a feed-forward sublayer.
enum FeedForwardTensor {
    F_GAIN, F_SHIFT,
    F_HIDDEN, F_HIDDEN_BIAS, F_GATE, F_GATE_BIAS,
    F_OUT, F_OUT_BIAS,                  // sparse: a row of F_OUT belongs to a unit
    F_LOW, F_LOGITS, F_LOGITS_BIAS,     // controller
    F_SRU_GAIN, F_SRU_SHIFT, F_SRU_IN, F_SRU_IN_BIAS, F_SRU_GATES, F_SRU_GATES_BIAS, F_SRU_OUT,
    F_SRU_OUT_BIAS,
};
enum FeedForwardNumber { F_VARIANT, F_ACTIVATION, F_BLOCK, F_SRU };
enum Variant { DENSE_FF = 0, GATED_FF = 1, SPARSE_FF = 2 };
enum Activation { RELU, GELU, GELU_TANH, SILU, SIGMOID, LINEAR, SQUARED_RELU, ELU, SELU, SOFTPLUS,
                  ACTIVATIONS };

enum Positions { NO_POSITIONS, SINUSOIDAL, LEARNED };
enum Rotation { NO_ROTATION, HALVES, NEIGHBOURS };

struct Header {
    char magic[8];
    uint64_t checksum;                  // FNV-1a of everything from file_bytes to the tables' end
    uint64_t file_bytes;
    uint32_t tensors, sublayers;
    uint32_t dim, vocab;
    uint32_t positions, rotation;
    uint32_t limit;                     // longest sequence; 0: any
    uint32_t rms, post, reversible;     // 0 or 1
    uint32_t cache;                     // Dtype of keys and values
    uint32_t modules;                   // of a multiplicative output; 0: a plain matrix
    int32_t table, place_table, enter_gain, enter_shift, gain, shift;
    int32_t output, output_modules, output_bias, unused;
    double eps, rope_base, output_scale, sru_scale;
};
