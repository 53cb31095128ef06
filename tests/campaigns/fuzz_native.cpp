// Fuzzing of the model reader under the address and undefined-behaviour sanitizers.
//
//     fuzz_native MODEL INPUTS SEED [TABLE_BYTES]
//
// Each input is the model file with a few changes in its header and tables, cut short now and then,
// and with a checksum that fits. It is refused by an exception, or it loads and decodes 3 tokens.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "step.h"

static uint64_t fnv(const unsigned char* data, uint64_t count) {
    uint64_t hash = 1469598103934665603ull;
    for (uint64_t i = 0; i < count; i++) hash = (hash ^ data[i]) * 1099511628211ull;
    return hash;
}

// The file in memory that ends exactly where it ends, so that one byte more is found.
struct Input {
    unsigned char* data;
    uint64_t size;
    explicit Input(uint64_t size)
        : data((unsigned char*)std::aligned_alloc(64, std::max<uint64_t>((size + 63) / 64 * 64, 64))),
          size(size) {}
    ~Input() { std::free(data); }
};

static bool decodes(const Input& input) {
    try {
        Model model(input.data, input.size);
        Session session(model, 1);
        // As the Python side does: the library says how wide scores are.
        std::vector<float> scores(model.vocab());
        int32_t ids[3] = {0, 0, 0}, rows[3] = {0, 0, 0}, wanted[1] = {2}, best[1];
        Call call{3, ids, rows, 1, wanted, scores.data(), best};
        if (model.header.limit && model.header.limit < 3) return false;
        // Sizes that a file may honestly have, and that would only fill memory here.
        for (const Sublayer& s : model.sublayers)
            if (s.kind == ATTENTION && s.attention.heads * s.attention.head_dim > (1 << 20)) return false;
        auto pool = shared_pool();
        Workspace space;
        space.grow(model, 3, pool->size());
        Step step(session, *best_kernels(), space, call);
        pool->run([&](Team& team) { step.run(team); });
        step.finish();
        return true;
    } catch (const std::exception&) {
        return false;
    }
}

int main(int count, char** given) {
    if (count < 4) return 2;
    std::ifstream file(given[1], std::ios::binary);
    std::vector<char> whole{std::istreambuf_iterator<char>(file), {}};
    Header header;
    std::memcpy(&header, whole.data(), sizeof header);
    uint64_t tables = sizeof header + header.tensors * sizeof(TensorRecord) +
                      header.sublayers * sizeof(SublayerRecord);
    std::mt19937_64 draw(std::strtoull(given[3], nullptr, 10));
    long inputs = std::strtol(given[2], nullptr, 10), ran = 0;
    set_threads(1);
    const uint64_t words[] = {0, 1, 2, 3, 16, 63, 64, 1u << 20, 0x7fffffff, 0x80000000ull, ~0ull};
    for (long i = 0; i < inputs; i++) {
        uint64_t size = draw() % 16 ? whole.size() : draw() % whole.size();
        Input input(size);
        std::memcpy(input.data, whole.data(), size);
        for (int change = draw() % 4; change >= 0; change--) {
            uint64_t at = 16 + draw() % (tables - 16);
            if (at + 8 > size) continue;
            switch (draw() % 3) {
                case 0: input.data[at] ^= 1 << draw() % 8; break;
                case 1: input.data[at] = (unsigned char)draw(); break;
                default: std::memcpy(input.data + at / 4 * 4, &words[draw() % 11], draw() % 2 ? 4 : 8);
            }
        }
        if (size >= 24 && draw() % 8) std::memcpy(input.data + 16, &size, 8);
        Header now;
        if (size >= sizeof now) {
            std::memcpy(&now, input.data, sizeof now);
            uint64_t end = sizeof now + (uint64_t)now.tensors * sizeof(TensorRecord) +
                           (uint64_t)now.sublayers * sizeof(SublayerRecord);
            if (end <= size) {
                uint64_t sum = fnv(input.data + 16, end - 16);
                std::memcpy(input.data + 8, &sum, 8);
            }
        }
        ran += decodes(input);
    }
    std::printf("%ld inputs, %ld decoded\n", inputs, ran);
}
