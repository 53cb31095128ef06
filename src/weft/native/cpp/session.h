// The decoding state of a batch of sequences of different lengths.
#pragma once

#include <vector>

#include "cache.h"
#include "model.h"

struct Sequence {
    int64_t length = 0;
    std::vector<Cache> caches;               // one for each attention
    std::vector<std::vector<float>> inputs;  // last inputs of its convolutions, oldest first
    std::vector<std::vector<float>> memory;  // of the SRU of each feed-forward

    explicit Sequence(const Model& model);
};

// One phase of the work on a token, and its cost so far.
enum Part { P_EMBED, P_NORM, P_QKV, P_MULT, P_CONV, P_ATTENTION, P_OUT, P_CONTROLLER, P_FEEDFORWARD,
            P_SRU, P_LOGITS, P_PICK, PARTS };
extern const char* const PART_NAMES[PARTS];

struct Profile {
    int64_t calls = 0;
    int64_t nanoseconds[PARTS] = {};
    int64_t bytes[PARTS] = {};  // of weights and cache that had to be read
};

struct Session {
    const Model& model;
    std::vector<Sequence> rows;
    Profile profile;

    Session(const Model& model, int64_t rows) : model(model), rows(rows, Sequence(model)) {}
};
