"""llama.cpp as a rival: a random model of the same shape, written as GGUF, decoded by its library.

Its Llama architecture has gated feed-forwards: three matrices of 8/3·width units, with the
parameter count of two of 4·width. Width, depth, heads and vocabulary are those of the dense model.
Needs the packages `llama-cpp-python` and `gguf`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from weft.bench.decode_paths import TOTAL
from weft.bench.decode_setting import DecodeSetting
from weft.bench.optional import optional
from weft.errors import WeftError

KINDS = ("f32", "f16", "q8_0", "q4_0")
_UNITS = 256  # feed-forward units come in multiples of this
_SPECIAL = ("<unk>", "<s>", "</s>")


def units(dim: int) -> int:
    """Units of a gated feed-forward with about 8·dim² parameters."""
    return max(1, round(8 * dim / 3 / _UNITS)) * _UNITS


def tensors(dim: int, layers: int, vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a Llama model's parameters."""
    hidden = units(dim)
    yield "token_embd.weight", (vocab, dim)
    for layer in range(layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (dim,)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield f"{block}.{name}.weight", (dim, dim)
        yield f"{block}.ffn_norm.weight", (dim,)
        yield f"{block}.ffn_gate.weight", (hidden, dim)
        yield f"{block}.ffn_up.weight", (hidden, dim)
        yield f"{block}.ffn_down.weight", (dim, hidden)
    yield "output_norm.weight", (dim,)
    yield "output.weight", (vocab, dim)


def write_gguf(path: Path, config: Any, kind: str, context: int) -> int:
    """Write a random Llama model shaped like a dense decoder; returns its number of parameters."""
    gguf = optional("gguf", "gguf")
    frame, order = config.trunk.stack.frame, config.trunk.stack.order
    vocab, layers = config.trunk.embedding.vocab, order.count("s")
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(frame.dim)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(units(frame.dim))
    writer.add_head_count(frame.heads)
    writer.add_head_count_kv(frame.kv_heads)
    writer.add_rope_dimension_count(frame.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    _add_words(writer, vocab, gguf)
    wanted = gguf.GGMLQuantizationType[kind.upper()]
    generator, total = np.random.default_rng(0), 0
    for name, shape in tensors(frame.dim, layers, vocab):
        values = generator.standard_normal(shape, dtype=np.float32)
        total += values.size
        if len(shape) == 1:
            writer.add_tensor(name, 1.0 + 0.1 * values)
        else:
            rounded = gguf.quantize(values * shape[-1] ** -0.5, wanted)
            writer.add_tensor(name, rounded, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return total


def _add_words(writer: Any, vocab: int, gguf: Any) -> None:
    """Add a vocabulary of made-up words, which the library requires."""
    words = [*_SPECIAL, *(f"w{number}" for number in range(vocab - len(_SPECIAL)))]
    kinds = [gguf.TokenType.CONTROL] * len(_SPECIAL)
    kinds += [gguf.TokenType.NORMAL] * (vocab - len(_SPECIAL))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def llama_clock(setting: DecodeSetting, kind: str) -> tuple[Callable[[], dict[str, float]], int]:
    """A function that times one token of llama.cpp's model, and the number of its parameters."""
    if kind not in KINDS:
        raise WeftError(f"a precision of llama.cpp is one of {', '.join(KINDS)}; got {kind!r}")
    if setting.timed < setting.layers or setting.batch > 1 or setting.part != "model":
        raise WeftError(
            "llama.cpp has no timing of its parts, so it is timed whole: all layers, batch 1"
        )
    import torch

    library = optional("llama_cpp", "llama-cpp-python")
    room = setting.context + setting.rounds + 8
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        parameters = write_gguf(path, setting.dense, kind, room)
        threads = torch.get_num_threads()
        # Not mapped: the file is deleted once the model is loaded.
        model = library.Llama(
            str(path), n_ctx=room, n_threads=threads, use_mmap=False, verbose=False
        )
    model.eval(list(range(3, 3 + setting.context - setting.rounds // 2)))

    def clock() -> dict[str, float]:
        start = time.perf_counter()
        model.eval([5])
        return {TOTAL: time.perf_counter() - start}

    return clock, parameters
