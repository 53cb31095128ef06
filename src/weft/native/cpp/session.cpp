#include "session.h"

const char* const PART_NAMES[PARTS] = {"embed",      "norm",        "qkv", "mult",   "conv", "attention",
                                       "output",     "controller",  "feedforward",   "sru",
                                       "logits",     "pick"};

Sequence::Sequence(const Model& model) {
    for (const Sublayer& sublayer : model.sublayers)
        if (sublayer.kind == ATTENTION) {
            const Attention& a = sublayer.attention;
            caches.emplace_back((Dtype)model.header.cache, a.kv_heads, a.head_dim, a.window, a.sinks);
            inputs.emplace_back((a.length - 1) * model.dim(), 0.0f);
        } else {
            memory.emplace_back(sublayer.feedforward.sru, 0.0f);
        }
}
