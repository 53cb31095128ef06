// From the last hidden states to scores and tokens.
#include <algorithm>
#include <cstring>

#include "step.h"

int32_t argmax(const float* scores, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (scores[i] > scores[best]) best = i;
    return (int32_t)best;
}

void Step::output(Team& team, const float* x) {
    const Header& h = model_.header;
    float* y = space_.normed.get();
    int64_t vocab = model_.vocab();
    for (int64_t o; (o = team.next()) < call_.outputs;) {
        const float* from = x + call_.wanted[o] * dim_;
        float* to = y + o * dim_;
        if (h.post)
            std::memcpy(to, from, dim_ * 4);
        else
            kernels_.norm(from, (const float*)model_.gain.data, (const float*)model_.shift.data, dim_,
                          (float)h.eps, h.rms, to);
        for (int64_t i = 0; i < dim_; i++) to[i] *= (float)h.output_scale;
    }
    team.barrier();
    if (!call_.outputs) return;
    if (h.modules) {
        factored_output(team);
    } else {
        float* scores = call_.scores;
        const float* bias = (const float*)model_.output_bias.data;
        matmul(team, model_.output, y, dim_, call_.outputs, scores, vocab,
               [&](int64_t o, int64_t first, int64_t last) {
                   if (bias)
                       for (int64_t i = first; i < last; i++) scores[o * vocab + i] += bias[i];
               });
    }
    team.barrier();
    mark(team, P_LOGITS, model_.output.bytes() + model_.output_modules.bytes());
    if (call_.best)
        for (int64_t o; (o = team.next()) < call_.outputs;)
            call_.best[o] = argmax(call_.scores + o * vocab, vocab);
    team.barrier();
    mark(team, P_PICK, 0);
}

// scores[s, m] = sum_i x_i D[i, s] E[i, m]: threads divide the panels, since there are few rows.
void Step::factored_output(Team& team) {
    const Matrix& e = model_.output;
    int64_t modules = model_.header.modules, each = model_.vocab() / modules;
    int64_t rows = call_.outputs * modules, strips = (rows + STRIP - 1) / STRIP;
    const float* bias = (const float*)model_.output_bias.data;
    std::vector<float>& packed = space_.packed[team.id()];
    packed.resize(std::max<size_t>(packed.size(), strips * dim_ * STRIP));
    for (int64_t i = 0; i < strips; i++)
        pack_factors(space_.normed.get(), model_.output_modules, e.scales, i * STRIP,
                     std::min<int64_t>(STRIP, rows - i * STRIP), 0, dim_, &packed[i * dim_ * STRIP]);
    for (int64_t p; (p = team.next()) < e.cols / PANEL;) {
        int64_t first = p * PANEL, count = std::min<int64_t>(PANEL, each - first);
        float piece[PANEL * STRIP];
        for (int64_t i = 0; i < strips; i++) {
            int64_t here = std::min<int64_t>(STRIP, rows - i * STRIP);
            kernels_.panel(e, p, 0, dim_, &packed[i * dim_ * STRIP], (int)here, piece, PANEL, false, i,
                           strips);
            for (int64_t r = 0; r < here; r++) {
                int64_t at = (i * STRIP + r) * each + first;
                for (int64_t c = 0; c < count; c++)
                    call_.scores[at + c] =
                        piece[r * PANEL + c] + (bias ? bias[(at + c) % model_.vocab()] : 0.0f);
            }
        }
    }
}
