#include "step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

void Workspace::grow(const Model& model, int64_t tokens, int threads) {
    packed.resize(std::max<size_t>(packed.size(), threads));
    scores.resize(packed.size());
    logits.resize(packed.size());
    picked.resize(packed.size());
    far.resize(packed.size());
    if (tokens <= room) return;
    int64_t dim = model.dim(), wide = dim, units = 1, rank = 1, blocks = 1, mixes = 1;
    for (const Sublayer& sublayer : model.sublayers)
        if (sublayer.kind == ATTENTION) {
            const Attention& a = sublayer.attention;
            wide = std::max(wide, a.width());
            for (const Factored* f : {&a.q, &a.k, &a.v})
                if (f->mix) mixes = std::max(mixes, f->modules.cols * f->mix.cols);
        } else {
            const FeedForward& f = sublayer.feedforward;
            if (f.variant == SPARSE_FF) {
                rank = std::max(rank, f.low.rows);
                blocks = std::max(blocks, f.blocks());
            } else {
                units = std::max(units, f.units());
            }
            units = std::max(units, 4 * f.sru);
        }
    x = block<float>(tokens * dim);
    other = block<float>(tokens * dim);
    normed = block<float>(tokens * dim);
    branch = block<float>(tokens * dim);
    qkv = block<float>(tokens * wide);
    heads = block<float>(tokens * wide);
    hidden = block<float>(tokens * units);
    gate = block<float>(tokens * units);
    low = block<float>(tokens * rank);
    active = block<float>(tokens * blocks);
    chosen = block<int32_t>(tokens * blocks);
    mixed = block<float>(tokens * mixes);
    conv = block<float>(tokens * mixes * 3);
    turns = block<float>(tokens * std::max<int64_t>(model.head_dim, 1));
    room = tokens;
}

Step::Step(Session& session, const Kernels& kernels, Workspace& space, const Call& call)
    : session_(session), model_(session.model), kernels_(kernels), space_(space), call_(call),
      tokens_(call.tokens), dim_(session.model.dim()) {
    std::vector<int64_t> counts(session.rows.size(), 0);
    for (int64_t t = 0; t < tokens_; t++) {
        int64_t row = call.rows[t], place = counts[row]++;
        places_.push_back(place);
        positions_.push_back(session.rows[row].length + place);
    }
    for (size_t row = 0; row < counts.size(); row++)
        if (counts[row])
            for (Cache& cache : session.rows[row].caches)
                cache.reserve(session.rows[row].length + counts[row]);
    since_ = std::chrono::steady_clock::now();
}

void Step::finish() {
    for (int64_t t = 0; t < tokens_; t++) session_.rows[call_.rows[t]].length++;
    session_.profile.calls++;
}

// First thread only: adds the time since the last mark to this part.
void Step::mark(Team& team, Part part, int64_t bytes) {
    if (team.id()) return;
    auto now = std::chrono::steady_clock::now();
    session_.profile.nanoseconds[part] +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - since_).count();
    session_.profile.bytes[part] += bytes;
    since_ = now;
}

void Step::run(Team& team) {
    embed(team);
    Streams streams{space_.x.get(), space_.x.get()};
    if (model_.header.reversible) streams.into = space_.other.get();
    for (const Sublayer& sublayer : model_.sublayers) {
        if (model_.header.post) {
            // The branch is computed separately: its sum with x is normalised.
            for (int64_t t; (t = team.next()) < tokens_;)
                std::memcpy(space_.branch.get() + t * dim_, streams.x + t * dim_, dim_ * 4);
            team.barrier();
            streams.into = space_.branch.get();
        }
        if (sublayer.kind == ATTENTION)
            attention(team, sublayer, streams);
        else
            feedforward(team, sublayer, streams);
        if (model_.header.post) {
            bool mixes = sublayer.kind == ATTENTION;
            const auto& gain = mixes ? sublayer.attention.gain : sublayer.feedforward.gain;
            const auto& shift = mixes ? sublayer.attention.shift : sublayer.feedforward.shift;
            norm(team, streams.into, gain, shift, streams.x);
        } else if (model_.header.reversible) {
            std::swap(streams.x, streams.into);
        }
    }
    if (model_.header.reversible) {
        for (int64_t t; (t = team.next()) < tokens_;)
            for (int64_t i = t * dim_; i < (t + 1) * dim_; i++)
                streams.x[i] = (streams.x[i] + streams.into[i]) / 2;
        team.barrier();
    }
    output(team, streams.x);
}

void Step::embed(Team& team) {
    const Header& h = model_.header;
    const float one = 1.0f;
    for (int64_t t; (t = team.next()) < tokens_;) {
        float* x = space_.x.get() + t * dim_;
        std::fill(x, x + dim_, 0.0f);
        kernels_.add_rows(model_.table, call_.ids + t, &one, 1, 0, dim_, x);
        int64_t position = positions_[t];
        if (h.positions == LEARNED) {
            int32_t place = (int32_t)position;
            kernels_.add_rows(model_.places, &place, &one, 1, 0, dim_, x);
        } else if (h.positions == SINUSOIDAL) {
            for (int64_t i = 0; i < dim_; i += 2) {
                double angle = (double)position * model_.waves[i / 2];
                x[i] += (float)(std::sin(angle) * std::sqrt(2.0));
                if (i + 1 < dim_) x[i + 1] += (float)(std::cos(angle) * std::sqrt(2.0));
            }
        }
        if (h.rotation) {
            int64_t d = model_.head_dim, half = d / 2;
            float* turn = space_.turns.get() + t * d;
            for (int64_t p = 0; p < half; p++) {
                double angle = (double)position * model_.turns[p];
                turn[p] = (float)std::cos(angle);
                turn[half + p] = (float)std::sin(angle);
            }
        }
        if (h.post)
            kernels_.norm(x, (const float*)model_.enter_gain.data,
                          (const float*)model_.enter_shift.data, dim_, (float)h.eps, h.rms, x);
        if (h.reversible) std::memcpy(space_.other.get() + t * dim_, x, dim_ * 4);
    }
    team.barrier();
    mark(team, P_EMBED, tokens_ * dim_ * model_.table.width());
}

void Step::norm(Team& team, const float* x, const Matrix& gain, const Matrix& shift, float* y) {
    const Header& h = model_.header;
    for (int64_t t; (t = team.next()) < tokens_;)
        kernels_.norm(x + t * dim_, (const float*)gain.data, (const float*)shift.data, dim_,
                      (float)h.eps, h.rms, y + t * dim_);
    team.barrier();
    mark(team, P_NORM, 0);
}

// y = x Wᵀ in pieces that threads take in turn; `after` reads each piece while it is in cache.
void Step::matmul(Team& team, const Matrix& w, const float* x, int64_t xstride, int64_t tokens,
                  float* y, int64_t ystride, const After& after) {
    constexpr int64_t bytes = 128 << 10;
    int64_t piece = std::max<int64_t>(bytes / (w.cols * w.width()), 1);
    piece = std::min(piece, std::max<int64_t>(w.rows / (4 * team.size()), 1));
    piece = (piece + 11) / 12 * 12;
    for (int64_t item; (item = team.next()) * piece < w.rows;) {
        int64_t first = item * piece, last = std::min(first + piece, w.rows);
        kernels_.dot(w, x, xstride, tokens, first, last, y + first, ystride);
        if (after)
            for (int64_t t = 0; t < tokens; t++) after(t, first, last);
    }
}

// into += x Wᵀ + bias, for every token.
void Step::add(Team& team, const Matrix& w, const Matrix& bias, const float* x, float* into) {
    float* y = space_.normed.get();
    const float* b = (const float*)bias.data;
    matmul(team, w, x, w.cols, tokens_, y, dim_, [&](int64_t t, int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++)
            into[t * dim_ + r] += y[t * dim_ + r] + (b ? b[r] : 0.0f);
    });
    team.barrier();
}

// c (rows, b.cols) = a b, a thread's rows at a time; `pack` writes strips of a, scales of b included.
void Step::panels(Team& team, const Matrix& b, int64_t rows, const Pack& pack, float* c,
                  const std::function<void(int64_t first, int64_t last)>& after) {
    int64_t tile = kernels_.tile, tiles = (rows + tile - 1) / tile;
    int64_t begin = tiles * team.id() / team.size() * tile;
    int64_t end = std::min(tiles * (team.id() + 1) / team.size() * tile, rows);
    int64_t strips = (end - begin + STRIP - 1) / STRIP;
    std::vector<float>& packed = space_.packed[team.id()];
    packed.resize(std::max<size_t>(packed.size(), strips * DEPTH * STRIP));
    for (int64_t first = 0; first < b.rows; first += DEPTH) {
        int64_t last = std::min(first + DEPTH, b.rows);
        auto each = [&](auto&& visit) {
            for (int64_t i = 0; i < strips; i++) {
                int64_t row = begin + i * STRIP;
                visit(i, row, std::min<int64_t>(STRIP, end - row), &packed[i * DEPTH * STRIP]);
            }
        };
        each([&](int64_t, int64_t row, int64_t here, float* a) { pack(row, here, first, last, a); });
        for (int64_t p = 0; p < b.cols / PANEL; p++)
            each([&](int64_t i, int64_t row, int64_t here, const float* a) {
                kernels_.panel(b, p, first, last, a, (int)here, c + row * b.cols + p * PANEL, b.cols,
                               first > 0, i, strips);
            });
    }
    if (end > begin) after(begin, end);
    team.barrier();
}
