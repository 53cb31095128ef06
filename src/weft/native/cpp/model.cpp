// Reads a model file; every count, offset and shape is checked before use.
#include "model.h"

#include <cmath>
#include <cstring>

namespace {

constexpr uint64_t MOST = uint64_t(1) << 31;  // of any width, so that products fit 64 bits

[[noreturn]] void refuse(const std::string& what) { throw Error("this is not a model file: " + what); }

void need(bool holds, const std::string& what) {
    if (!holds) refuse(what);
}

uint64_t fnv(const unsigned char* data, uint64_t count) {
    uint64_t hash = 1469598103934665603ull;
    for (uint64_t i = 0; i < count; i++) hash = (hash ^ data[i]) * 1099511628211ull;
    return hash;
}

struct Reader {
    const unsigned char* data;
    uint64_t bytes;
    std::vector<TensorRecord> records;

    const void* at(uint64_t offset, uint64_t size, const std::string& name) const {
        need(offset % ALIGNMENT == 0, name + " is not aligned to 64 bytes");
        need(offset <= bytes && size <= bytes - offset,
             name + " reaches beyond the end of the file");
        return data + offset;
    }

    // The tensor of a slot; rows or cols -1: any.
    Matrix tensor(int32_t number, int64_t rows, int64_t cols, bool panels,
                  const std::string& name) const {
        need(number >= 0 && (size_t)number < records.size(), name + " is missing");
        const TensorRecord& r = records[number];
        need(r.dtype <= INT8, name + " has an unknown dtype " + std::to_string(r.dtype));
        need(r.panels == (panels ? 1u : 0u), name + " has the wrong layout");
        need(r.rows >= 1 && r.cols >= 1 && r.rows <= MOST && r.cols <= MOST,
             name + " has impossible sizes");
        need((rows < 0 || r.rows == (uint64_t)rows) && (cols < 0 || r.cols == (uint64_t)cols),
             name + " is " + std::to_string(r.rows) + " x " + std::to_string(r.cols) +
                 ", expected " + std::to_string(rows) + " x " + std::to_string(cols));
        need(!panels || r.cols % PANEL == 0, name + " does not consist of whole panels");
        Matrix m;
        m.dtype = (Dtype)r.dtype;
        m.rows = (int64_t)r.rows;
        m.cols = (int64_t)r.cols;
        uint64_t numbers, size;
        need(!__builtin_mul_overflow(r.rows, r.cols, &numbers) &&
                 !__builtin_mul_overflow(numbers, (uint64_t)m.width(), &size),
             name + " has impossible sizes");
        m.data = at(r.offset, size, name);
        if (m.dtype == INT8) m.scales = (const float*)at(r.scales, r.rows * 4, name + "'s scales");
        return m;
    }

    Matrix vector(int32_t number, int64_t length, const std::string& name) const {
        Matrix m = tensor(number, 1, length, false, name);
        need(m.dtype == FLOAT32, name + " is a vector, which is float32");
        return m;
    }

    Matrix maybe(int32_t number, int64_t length, const std::string& name) const {
        return number == -1 ? Matrix() : vector(number, length, name);
    }
};

int64_t number(const SublayerRecord& record, int slot, int64_t least, int64_t most,
               const std::string& name) {
    int64_t value = record.numbers[slot];
    need(value >= least && value <= most, name + " is out of range: " + std::to_string(value));
    return value;
}

int64_t panelled(int64_t columns) { return (columns + PANEL - 1) / PANEL * PANEL; }

Factored factored(const Reader& reader, const int32_t* t, int64_t dim, int64_t width,
                  const std::string& name) {
    Factored f;
    f.width = width;
    f.modules = reader.tensor(t[0], dim, -1, false, name + " modules");
    need(f.modules.dtype == FLOAT32, name + " modules are not float32");
    need(width % f.modules.cols == 0, name + " modules do not share its outputs evenly");
    f.mix = reader.tensor(t[1], dim, panelled(f.each()), true, name + " mix");
    f.bias = reader.maybe(t[2], width, name + " bias");
    return f;
}

Attention attention(const Reader& reader, const SublayerRecord& record, const Header& header,
                    const std::string& name) {
    Attention a;
    const int32_t* t = record.tensors;
    int64_t dim = header.dim;
    a.gain = reader.vector(t[A_GAIN], dim, name + " gain");
    a.shift = reader.maybe(t[A_SHIFT], dim, name + " shift");
    a.heads = number(record, A_HEADS, 1, 1 << 16, name + " heads");
    a.kv_heads = number(record, A_KV_HEADS, 1, a.heads, name + " kv_heads");
    a.head_dim = number(record, A_HEAD_DIM, 1, 1 << 16, name + " head_dim");
    need(a.heads % a.kv_heads == 0, name + " heads do not share key heads evenly");
    need(header.rotation == NO_ROTATION || a.head_dim % 2 == 0, name + " head_dim is odd");
    a.window = number(record, A_WINDOW, 0, 1 << 30, name + " window");
    a.sinks = number(record, A_SINKS, 0, a.window ? 1 << 20 : 0, name + " sinks");
    a.projection = number(record, A_PROJECTION, DENSE_QKV, FACTORED_QKV, name + " projection");
    a.length = a.span = 1;
    if (a.projection == DENSE_QKV) {
        a.qkv = reader.tensor(t[A_QKV], a.width(), dim, false, name + " qkv");
        a.qkv_bias = reader.maybe(t[A_QKV_BIAS], a.width(), name + " qkv bias");
    } else if (a.projection == FACTORED_QKV) {
        a.q = factored(reader, t + A_MODULES, dim, a.q_width(), name + " q");
        a.k = factored(reader, t + A_K_MODULES, dim, a.kv_width(), name + " k");
        a.v = factored(reader, t + A_V_MODULES, dim, a.kv_width(), name + " v");
    } else {
        need(a.q_width() == dim && a.kv_heads == a.heads, name + " convolves modules of one width");
        a.length = number(record, A_LENGTH, 1, 64, name + " length");
        a.span = number(record, A_SPAN, 1, 63, name + " span");
        need(a.span % 2 == 1, name + " span is even");
        a.q = factored(reader, t + A_MODULES, dim, dim, name);
        int64_t each = a.q.each(), wide = panelled(each);
        a.conv_qk = reader.tensor(t[A_CONV_QK], a.length * a.span * each, 2 * wide, true,
                                  name + " conv qk");
        a.conv_qk_bias = reader.maybe(t[A_CONV_QK_BIAS], 2 * each, name + " conv qk bias");
        a.conv_v = reader.tensor(t[A_CONV_V], a.length * each, wide, true, name + " conv v");
        a.conv_v_bias = reader.maybe(t[A_CONV_V_BIAS], each, name + " conv v bias");
    }
    if (t[A_OUT] == -1) {
        need(a.q_width() == dim, name + " has no output matrix, so its heads are as wide as it");
        need(t[A_OUT_BIAS] == -1, name + " has a bias without an output matrix");
    } else {
        a.out = reader.tensor(t[A_OUT], dim, a.q_width(), false, name + " out");
        a.out_bias = reader.maybe(t[A_OUT_BIAS], dim, name + " out bias");
    }
    return a;
}

void sru(const Reader& reader, const int32_t* t, int64_t dim, FeedForward& f,
         const std::string& name) {
    f.sru_gain = reader.maybe(t[F_SRU_GAIN], dim, name + " sru gain");
    f.sru_shift = reader.maybe(t[F_SRU_SHIFT], dim, name + " sru shift");
    f.sru_in = reader.tensor(t[F_SRU_IN], f.sru, dim, false, name + " sru in");
    f.sru_in_bias = reader.maybe(t[F_SRU_IN_BIAS], f.sru, name + " sru in bias");
    f.sru_gates = reader.tensor(t[F_SRU_GATES], 3 * f.sru, f.sru, false, name + " sru gates");
    f.sru_gates_bias = reader.maybe(t[F_SRU_GATES_BIAS], 3 * f.sru, name + " sru gates bias");
    f.sru_out = reader.tensor(t[F_SRU_OUT], dim, f.sru, false, name + " sru out");
    f.sru_out_bias = reader.maybe(t[F_SRU_OUT_BIAS], dim, name + " sru out bias");
}

FeedForward feedforward(const Reader& reader, const SublayerRecord& record, const Header& header,
                        const std::string& name) {
    FeedForward f;
    const int32_t* t = record.tensors;
    int64_t dim = header.dim;
    f.gain = reader.vector(t[F_GAIN], dim, name + " gain");
    f.shift = reader.maybe(t[F_SHIFT], dim, name + " shift");
    f.variant = number(record, F_VARIANT, DENSE_FF, SPARSE_FF, name + " variant");
    f.activation = number(record, F_ACTIVATION, 0, ACTIVATIONS - 1, name + " activation");
    f.hidden = reader.tensor(t[F_HIDDEN], -1, dim, false, name + " hidden");
    int64_t units = f.hidden.rows;
    need(units < (int64_t(1) << 30), name + " has too many units");
    f.hidden_bias = reader.maybe(t[F_HIDDEN_BIAS], units, name + " hidden bias");
    if (f.variant == GATED_FF) {
        f.gate = reader.tensor(t[F_GATE], units, dim, false, name + " gate");
        f.gate_bias = reader.maybe(t[F_GATE_BIAS], units, name + " gate bias");
    }
    bool sparse = f.variant == SPARSE_FF;
    f.block = number(record, F_BLOCK, 1, sparse ? units : 1, name + " block");
    if (sparse) {
        need(units % f.block == 0, name + " units are no multiple of the block");
        need(f.activation == RELU, name + " is sparse, so its activation is relu");
        f.low = reader.tensor(t[F_LOW], -1, dim, false, name + " controller");
        f.logits = reader.tensor(t[F_LOGITS], units, f.low.rows, false, name + " logits");
        f.logits_bias = reader.maybe(t[F_LOGITS_BIAS], units, name + " logits bias");
    }
    f.out = reader.tensor(t[F_OUT], sparse ? units : dim, sparse ? dim : units, false, name + " out");
    f.out_bias = reader.maybe(t[F_OUT_BIAS], dim, name + " out bias");
    f.sru = number(record, F_SRU, 0, 1 << 16, name + " sru");
    if (f.sru) sru(reader, t, dim, f, name);
    return f;
}

void ends(Model& model, const Reader& reader) {
    const Header& h = model.header;
    model.table = reader.tensor(h.table, h.vocab, h.dim, false, "embedding");
    if (h.positions == LEARNED) {
        need(h.limit >= 1, "learned positions need a limit");
        model.places = reader.tensor(h.place_table, h.limit, h.dim, false, "positions");
    }
    if (h.post) {
        model.enter_gain = reader.vector(h.enter_gain, h.dim, "first gain");
        model.enter_shift = reader.maybe(h.enter_shift, h.dim, "first shift");
    } else {
        model.gain = reader.vector(h.gain, h.dim, "last gain");
        model.shift = reader.maybe(h.shift, h.dim, "last shift");
    }
    if (h.modules) {
        need(h.vocab % h.modules == 0, "the vocabulary is not a multiple of the output's modules");
        model.output_modules = reader.tensor(h.output_modules, h.dim, h.modules, false, "modules");
        need(model.output_modules.dtype == FLOAT32, "modules are float32");
        model.output = reader.tensor(h.output, h.dim, panelled(h.vocab / h.modules), true, "output");
    } else {
        model.output = reader.tensor(h.output, h.vocab, h.dim, false, "output");
    }
    model.output_bias = reader.maybe(h.output_bias, h.vocab, "output bias");
}

void settings(const Header& h) {
    need(h.dim >= 1 && h.dim <= (1u << 24), "dim is out of range");
    need(h.vocab >= 1 && h.vocab <= (1u << 26), "vocab is out of range");
    need(h.positions <= LEARNED && h.rotation <= NEIGHBOURS, "positions are of an unknown kind");
    need(h.rms <= 1 && h.post <= 1 && h.reversible <= 1, "a setting is neither 0 nor 1");
    need(!(h.post && h.reversible), "reversible sublayers have their norm in front");
    need(h.cache <= INT8, "the cache has an unknown dtype " + std::to_string(h.cache));
    need(h.limit <= (1u << 30), "limit is out of range");
    need(h.eps > 0 && h.eps < 1 && h.rope_base > 0 && h.rope_base < 1e30, "a number is out of range");
    need(h.tensors >= 1 && h.tensors <= (1u << 20) && h.sublayers >= 1 && h.sublayers <= (1u << 16),
         "the number of tensors or sublayers is out of range");
}

}  // namespace

Model::Model(const void* data, uint64_t bytes) {
    need(data && (uintptr_t)data % ALIGNMENT == 0, "its memory is not aligned to 64 bytes");
    need(bytes >= sizeof(Header), "it has " + std::to_string(bytes) + " bytes, fewer than a header");
    std::memcpy(&header, data, sizeof header);
    need(!std::memcmp(header.magic, MAGIC, sizeof MAGIC), "it does not begin with WEFTNAT1");
    need(header.file_bytes == bytes, "it has " + std::to_string(bytes) + " bytes, but was written with " +
                                         std::to_string(header.file_bytes) + "; is it truncated?");
    settings(header);
    uint64_t tables = sizeof header + header.tensors * sizeof(TensorRecord) +
                      header.sublayers * sizeof(SublayerRecord);
    need(tables <= bytes, "its tables reach beyond its end");
    const unsigned char* start = (const unsigned char*)data;
    need(fnv(start + 16, tables - 16) == header.checksum, "its header is damaged (checksum)");
    Reader reader{start, bytes, std::vector<TensorRecord>(header.tensors)};
    const unsigned char* at = start + sizeof header;
    std::memcpy(reader.records.data(), at, header.tensors * sizeof(TensorRecord));
    at += header.tensors * sizeof(TensorRecord);
    for (uint32_t i = 0; i < header.sublayers; i++, at += sizeof(SublayerRecord)) {
        SublayerRecord record;
        std::memcpy(&record, at, sizeof record);
        std::string name = "sublayer " + std::to_string(i);
        need(record.kind <= FEEDFORWARD, name + " is of an unknown kind");
        Sublayer sublayer{(Kind)record.kind, 0, {}, {}};
        if (record.kind == ATTENTION) {
            sublayer.index = attentions++;
            sublayer.attention = attention(reader, record, header, name);
            if (!head_dim) head_dim = sublayer.attention.head_dim;
            need(!header.rotation || head_dim == sublayer.attention.head_dim,
                 "rotary positions need heads of one width");
        } else {
            sublayer.index = feedforwards++;
            sublayer.feedforward = feedforward(reader, record, header, name);
        }
        sublayers.push_back(sublayer);
    }
    ends(*this, reader);
    for (int64_t i = 0; i < dim(); i += 2) waves.push_back(std::pow(1e4, -(double)i / (double)dim()));
    for (int64_t i = 0; header.rotation && i < head_dim; i += 2)
        turns.push_back(std::pow(header.rope_base, -(double)i / (double)head_dim));
}
