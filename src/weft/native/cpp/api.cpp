// The C interface. Functions return 0, or 1 and a message in `weft_error()` of this thread.
#include <algorithm>
#include <cstring>
#include <string>

#include "step.h"

#define WEFT extern "C" __attribute__((visibility("default")))

static thread_local std::string message;
static const Kernels* kernels = best_kernels();

template <class F>
static int guarded(F f) {
    try {
        f();
        return 0;
    } catch (const std::exception& error) {
        message = error.what();
    } catch (...) {
        message = "an unknown error";
    }
    return 1;
}

struct Decoder {
    Session session;
    Workspace space;
};

WEFT const char* weft_error() { return message.c_str(); }
WEFT const char* weft_level() { return kernels->level; }
WEFT int64_t weft_threads() { return shared_pool()->size(); }
WEFT int weft_set_threads(int threads) { return guarded([&] { set_threads(threads); }); }

WEFT int weft_set_level(const char* level) {
    return guarded([&] {
        const Kernels* found = kernels_named(level);
        if (!found) throw Error(std::string("this machine has no kernels named ") + level);
        kernels = found;
    });
}

// Waits between phases, polls while waiting, and how often a thread slept.
WEFT void weft_waits(int64_t* counts) {
    counts[0] = Gate::waits.load();
    counts[1] = Gate::looks.load();
    counts[2] = Gate::sleeps.load();
    counts[3] = Gate::SPINS;
}

WEFT int weft_load(const void* data, uint64_t bytes, void** model) {
    return guarded([&] { *model = new Model(data, bytes); });
}
WEFT void weft_unload(void* model) { delete (Model*)model; }
WEFT int64_t weft_vocab(void* model) { return ((Model*)model)->vocab(); }

WEFT int weft_start(void* model, int64_t rows, void** decoder) {
    return guarded([&] { *decoder = new Decoder{Session(*(Model*)model, rows), {}}; });
}
WEFT void weft_end(void* decoder) { delete (Decoder*)decoder; }

WEFT int64_t weft_length(void* decoder, int64_t row) {
    return ((Decoder*)decoder)->session.rows[row].length;
}

WEFT int64_t weft_cache_bytes(void* decoder) {
    int64_t total = 0;
    for (const Sequence& row : ((Decoder*)decoder)->session.rows)
        for (const Cache& cache : row.caches) total += cache.bytes();
    return total;
}

// A decoder with these rows of some decoders of one model, copied.
WEFT int weft_gather(void** decoders, const int32_t* rows, int64_t count, void** made) {
    return guarded([&] {
        auto* fresh = new Decoder{Session(((Decoder*)decoders[0])->session.model, 0), {}};
        for (int64_t i = 0; i < count; i++)
            fresh->session.rows.push_back(((Decoder*)decoders[i])->session.rows[rows[i]]);
        *made = fresh;
    });
}

static void check(const Session& session, const Call& call) {
    if (call.tokens < 1 || call.tokens > MOST_TOKENS)
        throw Error("a call takes 1 to " + std::to_string(MOST_TOKENS) + " tokens");
    std::vector<int64_t> counts(session.rows.size(), 0);
    for (int64_t t = 0; t < call.tokens; t++) {
        int64_t row = call.rows[t], id = call.ids[t];
        if (row < 0 || row >= (int64_t)counts.size()) throw Error("there is no such row");
        if (id < 0 || id >= session.model.vocab())
            throw Error("ids run from 0 to vocab - 1 = " + std::to_string(session.model.vocab() - 1) +
                        "; got " + std::to_string(id));
        if (counts[row] && call.rows[t - 1] != row) throw Error("tokens of a row stand together");
        counts[row]++;
        int64_t limit = session.model.header.limit, length = session.rows[row].length + counts[row];
        if (limit && length > limit)
            throw Error("the sequence has " + std::to_string(length) + " tokens, but the model has " +
                        "positions for " + std::to_string(limit));
    }
    // Outputs are normalised in a buffer with room for as many rows as there are tokens.
    if (call.outputs < 0 || call.outputs > call.tokens) throw Error("more outputs than tokens");
    for (int64_t o = 0; o < call.outputs; o++)
        if (call.wanted[o] < 0 || call.wanted[o] >= call.tokens) throw Error("no such token");
}

WEFT int weft_step(void* decoder, int64_t tokens, const int32_t* ids, const int32_t* rows,
                   int64_t outputs, const int32_t* wanted, float* scores, int32_t* best) {
    return guarded([&] {
        Decoder& d = *(Decoder*)decoder;
        Call call{tokens, ids, rows, outputs, wanted, scores, best};
        check(d.session, call);
        auto pool = shared_pool();
        d.space.grow(d.session.model, tokens, pool->size());
        Step step(d.session, *kernels, d.space, call);
        pool->run([&](Team& team) { step.run(team); });
        step.finish();
    });
}

WEFT int64_t weft_parts() { return PARTS; }
WEFT const char* weft_part_name(int part) { return PART_NAMES[part]; }
WEFT void weft_profile(void* decoder, int64_t* calls, int64_t* nanoseconds, int64_t* bytes) {
    Profile& profile = ((Decoder*)decoder)->session.profile;
    *calls = profile.calls;
    std::copy(profile.nanoseconds, profile.nanoseconds + PARTS, nanoseconds);
    std::copy(profile.bytes, profile.bytes + PARTS, bytes);
    profile = Profile();
}

// Reads `count` floats with all threads, once; the sum keeps the loop from being optimised away.
WEFT float weft_read(const float* data, int64_t count) {
    std::atomic<float> total{0};
    shared_pool()->run([&](Team& team) {
        constexpr int64_t piece = 32 << 10;
        float own = 0;
        for (int64_t i; (i = team.next()) * piece < count;)
            own += kernels->read(data + i * piece, std::min(piece, count - i * piece));
        total.store(own);
    });
    return total.load();
}
