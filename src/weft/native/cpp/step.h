// One call: new tokens of some sequences through the whole model. All threads of a team run `run`;
// phases end in barriers.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "kernels.h"
#include "pool.h"
#include "session.h"

struct Call {
    int64_t tokens = 0;             // at most MOST_TOKENS
    const int32_t* ids = nullptr;
    const int32_t* rows = nullptr;  // the sequence of each token; tokens of one are adjacent
    int64_t outputs = 0;
    const int32_t* wanted = nullptr;  // tokens whose scores are returned
    float* scores = nullptr;          // (outputs, vocab)
    int32_t* best = nullptr;          // (outputs), or nullptr
};

// Buffers of a call, reused by the next.
struct Workspace {
    Block<float> x, other, normed, qkv, heads, hidden, gate, low, active, mixed, conv, turns, branch;
    Block<int32_t> chosen;
    std::vector<std::vector<float>> packed, scores, logits;  // one of each for each thread
    std::vector<std::vector<int32_t>> picked, far;
    int64_t room = 0;

    void grow(const Model& model, int64_t tokens, int threads);
};

class Step {
  public:
    Step(Session& session, const Kernels& kernels, Workspace& space, const Call& call);
    void run(Team& team);
    void finish();  // updates lengths and memories

  private:
    using After = std::function<void(int64_t token, int64_t first, int64_t last)>;
    // Numbers first .. last of `count` rows, at most a strip of them.
    using Pack = std::function<void(int64_t row, int64_t count, int64_t first, int64_t last, float* a)>;
    struct Streams { float *x, *into; };  // what a branch reads, and what it is added to

    void embed(Team& team);
    void norm(Team& team, const float* x, const Matrix& gain, const Matrix& shift, float* y);
    void matmul(Team& team, const Matrix& w, const float* x, int64_t xstride, int64_t tokens,
                float* y, int64_t ystride, const After& after);
    void add(Team& team, const Matrix& w, const Matrix& bias, const float* x, float* into);
    void panels(Team& team, const Matrix& b, int64_t rows, const Pack& pack, float* c,
                const std::function<void(int64_t first, int64_t last)>& after);

    void attention(Team& team, const Sublayer& sublayer, Streams streams);
    void multiply(Team& team, const Factored& f, float* y,
                  const std::function<void(int64_t first, int64_t last)>& after);
    void pack_factors(const float* x, const Matrix& d, const float* scales, int64_t row, int64_t count,
                      int64_t first, int64_t last, float* packed) const;
    void factored_qkv(Team& team, const Attention& a);
    void convolved_qkv(Team& team, const Sublayer& sublayer);
    void gather_inputs(const Attention& a, const std::vector<const float*>& sources, int64_t span,
                       const Matrix& b, int64_t row, int64_t count, int64_t first, int64_t last,
                       float* packed);
    std::vector<const float*> sources(const Sublayer& sublayer) const;
    void rotate(const Attention& a, int64_t token, float* x) const;
    void attend(Team& team, const Attention& a, const Sublayer& sublayer, int64_t token,
                int64_t head, float* out);

    void feedforward(Team& team, const Sublayer& sublayer, Streams streams);
    void dense(Team& team, const FeedForward& f, float* into);
    void sparse(Team& team, const FeedForward& f, float* into);
    void choose(Team& team, const FeedForward& f, int64_t token, int64_t first, int64_t last);
    void sru(Team& team, const Sublayer& sublayer, float* into);

    void output(Team& team, const float* x);
    void factored_output(Team& team);
    void mark(Team& team, Part part, int64_t bytes);

    Session& session_;
    const Model& model_;
    const Kernels& kernels_;
    Workspace& space_;
    const Call& call_;
    int64_t tokens_, dim_;
    std::vector<int64_t> positions_, places_;  // of each token: in its sequence, in this call
    std::chrono::steady_clock::time_point since_;
};

int32_t argmax(const float* scores, int64_t count);
void activate(float* x, int64_t count, int64_t activation);
