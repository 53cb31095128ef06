"""Transformers' long models against the same models with weft's twins (`weft.interop.accelerate`).

    python benchmarks/cases/hf_twins.py --device cuda --length 16384 --seconds 150 --out FILE
    python benchmarks/cases/hf_twins.py --device cpu --tiny --out FILE

Forward and backward of a whole model of base size in training mode, bfloat16 on a GPU. First the
outputs and gradients of both are compared without dropout: in float32, and in bfloat16, where weft
may be no farther from float32 than twice as far as Transformers is. A case that fails gets no time.
The two take turns; medians. A peak is that of the forward and backward pass with the weights of one
model, counted from the start of the pass. Without --length, each case runs at its own length; with
it, those whose models are not made for that many tokens run at both. A model that runs out of
memory has that in its row, and the other one has its time. Each row is appended when it is known;
a case that the file has at that length is not run again, unless an error ended it.

On a GPU machine with torch 2.11 and Transformers 5.17, or later, all cases in one call of ten
minutes; weights are drawn there, so nothing has to be sent but the source:

    PYTHONPATH=src python benchmarks/cases/hf_twins.py --length 16384 --seconds 480 --out "$OUT/F"
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers as T

from weft.environment import environment
from weft.interop import accelerate
from weft.rows import append, read

TOLERANCE = 1e-3  # of the largest number, in float32 on a GPU
GATE = 2048  # tokens of the comparison, at most
LONG = 16_384


@dataclass(frozen=True)
class Case:
    """A family: its model of so many layers, and what it reads."""

    make: Callable[[int, bool, float, int | None], Any]  # length, tiny, dropout, layers
    read: Callable[[Any, int], dict[str, Any]]
    length: int = LONG
    batch: int = 1
    half: bool = True


def sized(tiny: bool, small: dict[str, Any], layers: dict[str, int], count: int | None) -> dict:
    """Settings of the size: the tiny ones, or base with fewer layers for a comparison."""
    own = dict(small) if tiny else {}
    return own | (dict.fromkeys(layers, count) if count else ({} if tiny else layers))


_BERT = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 100,
         "num_hidden_layers": 2}  # fmt: skip
_TWELVE = {"num_hidden_layers": 12}


def bert_like(config: Any, model: Any, tiny: bool, drop: float, count: int | None, **more: Any):
    """A model whose settings are called as BERT's."""
    sizes = sized(tiny, _BERT, _TWELVE, count)
    drops = {"hidden_dropout_prob": drop, "attention_probs_dropout_prob": drop}
    return model(config(**(drops | more | sizes)))


def longformer(length: int, tiny: bool, drop: float, count: int | None):
    more = {"max_position_embeddings": length + 2, "attention_window": 8 if tiny else 512,
            "vocab_size": 50265}  # fmt: skip
    make = lambda c: T.LongformerModel(c, add_pooling_layer=False)  # noqa: E731
    return bert_like(T.LongformerConfig, make, tiny, drop, count, **more)


def bigbird(length: int, tiny: bool, drop: float, count: int | None):
    more = {"max_position_embeddings": length, "block_size": 4 if tiny else 64,
            "vocab_size": 50358}  # fmt: skip
    make = lambda c: T.BigBirdModel(c, add_pooling_layer=False)  # noqa: E731
    return bert_like(T.BigBirdConfig, make, tiny, drop, count, **more)


def led(length: int, tiny: bool, drop: float, count: int | None):
    small = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 2,
             "decoder_layers": 1}  # fmt: skip
    base = {"d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}  # fmt: skip
    layers = {"encoder_layers": 6, "decoder_layers": 6}
    sizes = ({} if tiny else base) | sized(tiny, small, layers, count)
    window = 8 if tiny else 512
    more = {"max_encoder_position_embeddings": length, "attention_window": window, "dropout": drop}
    return T.LEDModel(T.LEDConfig(**(more | sizes)))


def bigbird_pegasus(length: int, tiny: bool, drop: float, count: int | None):
    small = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 100,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_layers": 2,
             "decoder_layers": 1, "block_size": 4}  # fmt: skip
    base = {"d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "vocab_size": 32_000}  # fmt: skip
    layers = {"encoder_layers": 6, "decoder_layers": 6}
    sizes = ({} if tiny else base) | sized(tiny, small, layers, count)
    drops = {"dropout": drop, "attention_dropout": drop}
    more = drops | {"max_position_embeddings": length}
    return T.BigBirdPegasusModel(T.BigBirdPegasusConfig(**(more | sizes)))


def nystromformer(length: int, tiny: bool, drop: float, count: int | None):
    few = 8 if tiny else 64
    more = {"max_position_embeddings": length, "segment_means_seq_len": length,
            "num_landmarks": few, "conv_kernel_size": few + 1, "vocab_size": 30_000}  # fmt: skip
    config, model = T.NystromformerConfig, T.NystromformerModel
    return bert_like(config, model, tiny, drop, count, **more)


def fnet(length: int, tiny: bool, drop: float, count: int | None):
    sizes = sized(tiny, _BERT, _TWELVE, count)
    sizes.pop("num_attention_heads", None)
    more = {"max_position_embeddings": length, "hidden_dropout_prob": drop, "vocab_size": 32_000}
    return T.FNetModel(T.FNetConfig(**(more | sizes)), add_pooling_layer=False)


def reformer(length: int, tiny: bool, drop: float, count: int | None):
    chunk = 8 if tiny else 64
    base = {"hidden_size": 768, "num_attention_heads": 12, "attention_head_size": 64,
            "feed_forward_size": 3072, "vocab_size": 320}  # fmt: skip
    small = {"hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
             "feed_forward_size": 64, "vocab_size": 100}  # fmt: skip
    layers = ["local", "lsh"] * (1 if tiny or count else 6)
    more = {"attn_layers": layers, "local_attn_chunk_length": chunk, "axial_pos_embds": False,
            "lsh_attn_chunk_length": chunk, "max_position_embeddings": length, "num_hashes": 2,
            "num_buckets": 2 * length // chunk, "hash_seed": 0, "is_decoder": True,
            "hidden_dropout_prob": drop, "local_attention_probs_dropout_prob": drop}  # fmt: skip
    return T.ReformerModel(T.ReformerConfig(**(more | (small if tiny else base))))


def funnel(length: int, tiny: bool, drop: float, count: int | None):
    small = {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 64, "vocab_size": 100}
    blocks = [1, 1] if tiny or count else [4, 4, 4]
    drops = {"hidden_dropout": drop, "attention_dropout": drop, "activation_dropout": 0.0}
    sizes = small if tiny else {}
    return T.FunnelModel(T.FunnelConfig(**(drops | {"block_sizes": blocks} | sizes)))


def swin(length: int, tiny: bool, drop: float, count: int | None):
    """Pictures of 4-pixel patches; `length` is the number of patches."""
    side = 4 * round(length**0.5)
    depths = [2, 2] if tiny or count else [2, 2, 18, 2]
    heads = [2, 4] if tiny else [4, 8, 16, 32][: len(depths)]
    sizes = {"image_size": side, "embed_dim": 16 if tiny else 128, "depths": depths,
             "num_heads": heads, "window_size": 4 if tiny else 7, "drop_path_rate": 0.0,
             "hidden_dropout_prob": drop}  # fmt: skip
    return T.SwinModel(T.SwinConfig(**sizes), add_pooling_layer=False)


def imagegpt(length: int, tiny: bool, drop: float, count: int | None):
    small = {"n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 100}
    base = {"n_embd": 768, "n_head": 12, "vocab_size": 513}
    sizes = ({} if tiny else base) | sized(tiny, small, {"n_layer": 12}, count)
    more = {"n_positions": length, "resid_pdrop": drop, "embd_pdrop": drop, "attn_pdrop": drop}
    return T.ImageGPTModel(T.ImageGPTConfig(**(more | sizes | {"use_cache": False})))


def switch_transformers(length: int, tiny: bool, drop: float, count: int | None):
    """Twelve layers in encoder and decoder, every other one of 8 experts."""
    small = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_heads": 2, "vocab_size": 100}
    layers = 2 if tiny or count else 12
    more = {"num_layers": layers, "num_decoder_layers": layers, "dropout_rate": drop,
            "num_sparse_encoder_layers": layers // 2, "num_sparse_decoder_layers": layers // 2,
            "router_jitter_noise": 0.0, "expert_capacity": 2 * length // 8}  # fmt: skip
    return T.SwitchTransformersModel(T.SwitchTransformersConfig(**(more | (small if tiny else {}))))


def tokens(model: Any, length: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(5, model.config.vocab_size, (1, length), generator=draw)}


def marked(model: Any, length: int) -> dict[str, Any]:
    """The first token is global."""
    given = tokens(model, length)
    given["global_attention_mask"] = torch.zeros_like(given["input_ids"])
    given["global_attention_mask"][:, 0] = 1
    return given


def with_decoder(read: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A summary of 256 tokens is read beside the source."""

    def both(model: Any, length: int) -> dict[str, Any]:
        given = read(model, length)
        return given | {"decoder_input_ids": given["input_ids"][:, : min(256, length)].clone()}

    return both


def pictures(model: Any, length: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    side = model.config.image_size
    return {"pixel_values": torch.randn(1, 3, side, side, generator=draw)}


def repeated(given: dict[str, Any], count: int) -> dict[str, Any]:
    """The same row several times: what it says does not matter to the time."""
    return {key: x.repeat(count, *(1,) * (x.dim() - 1)) for key, x in given.items()}


CASES = {
    "longformer": Case(longformer, marked),
    "bigbird": Case(bigbird, tokens),
    "led": Case(led, with_decoder(marked)),
    "bigbird_pegasus": Case(bigbird_pegasus, with_decoder(tokens)),
    "nystromformer": Case(nystromformer, tokens),
    "reformer": Case(reformer, tokens),
    "fnet": Case(fnet, tokens, half=False),  # Transformers' own runs in float32 alone
    "funnel": Case(funnel, tokens, 2048, 2),
    "imagegpt": Case(imagegpt, tokens, 1024, 8),
    "switch_transformers": Case(switch_transformers, with_decoder(tokens), 2048, 4),
    "swin": Case(swin, pictures, 56 * 56, 32),
}


def to(given: dict[str, Any], device: str, dtype: torch.dtype) -> dict[str, Any]:
    move = lambda x: x.to(device, dtype if x.is_floating_point() else None)  # noqa: E731
    return {key: move(x) for key, x in given.items()}


def outputs(model: Any, given: dict[str, Any]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The last hidden state and the gradients of all parameters, in float32."""
    model.zero_grad(set_to_none=True)
    out = model(**given).last_hidden_state.float()
    if model.training or model.config.model_type != "reformer":  # which learns in training alone
        draw = torch.Generator(out.device).manual_seed(1)
        (out * torch.randn(out.shape, generator=draw, device=out.device)).mean().backward()
    grads = [p.grad.float() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return out.detach(), grads


def apart(one: Any, two: Any) -> tuple[float, float]:
    """Greatest distance of outputs, and of gradients, relative to the largest number."""
    out = float((one[0] - two[0]).abs().max() / two[0].abs().max())
    largest = max((float(g.abs().max()) for g in two[1]), default=1.0)
    grads = zip(one[1], two[1], strict=True)
    return out, max((float((a - b).abs().max()) for a, b in grads), default=0.0) / largest


def gate(case: Case, length: int, tiny: bool, device: str) -> dict[str, Any]:
    """How far the two are apart, in both modes, without dropout, in a model of two layers."""
    short = min(length, GATE)
    torch.manual_seed(0)
    with torch.device(device):
        theirs = case.make(short, tiny, 0.0, 2)
    ours, given = accelerate(copy.deepcopy(theirs)), case.read(theirs, short)
    found: dict[str, Any] = {"status": "ok"}
    for training in (False, True):
        mode = "train" if training else "eval"
        for model in (theirs, ours):
            model.float().train(training)
        full = to(given, device, torch.float32)
        truth = outputs(theirs, full)
        errors = apart(outputs(ours, full), truth)
        found |= named(f"{mode}_float32", errors)
        wrong = max(errors) > TOLERANCE
        if device == "cuda" and case.half:
            half = to(given, device, torch.bfloat16)
            a, b = (apart(outputs(m.bfloat16(), half), truth) for m in (theirs, ours))
            found |= named(f"{mode}_bfloat16_transformers", a)
            found |= named(f"{mode}_bfloat16_weft", b)
            wrong |= any(y > 2 * x + TOLERANCE for x, y in zip(a, b, strict=True))
            theirs, ours = theirs.float(), ours.float()
        if wrong:
            found["status"] = "outputs differ"
    return found


def named(name: str, errors: tuple[float, float]) -> dict[str, float]:
    return {f"error_{name}": errors[0], f"gradient_error_{name}": errors[1]}


def step(model: Any, given: dict[str, Any]) -> None:
    model(**given).last_hidden_state.float().square().mean().backward()


def measured(models: dict[str, Any], given: dict[str, Any], device: str, rounds: int, until: float):
    """Medians of turns, and peaks; the first turn is a warm-up. Who runs out of memory sits out."""
    lost: set[str] = set()
    seconds: dict[str, list[float]] = {name: [] for name in models}
    peaks = dict.fromkeys(models, 0.0)
    cuda = device == "cuda"
    own = {n: sum(p.nbytes for p in m.parameters()) for n, m in models.items()}
    for turn in range(rounds + 1):
        for name in [name for name in models if name not in lost]:
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            others = torch.cuda.memory_allocated() - own[name] if cuda else 0
            start = time.perf_counter()
            try:
                step(models[name], given)
                if cuda:
                    torch.cuda.synchronize()
            except torch.cuda.OutOfMemoryError:
                lost.add(name)
            else:
                if turn:
                    seconds[name].append(time.perf_counter() - start)
            if cuda:
                peaks[name] = (torch.cuda.max_memory_allocated() - others) / 2**30
            models[name].zero_grad(set_to_none=True)
            if name in lost:
                torch.cuda.empty_cache()
        if turn and time.monotonic() > until:
            break
    row: dict[str, Any] = {}
    for name, each in seconds.items():
        row[f"{name}_ms"] = None if name in lost else 1e3 * median(each)
        row[f"{name}_peak_gib"] = None if name in lost else peaks[name]
        row[f"{name}_status"] = "out of memory" if name in lost else "ok"
        row[f"{name}_rounds"] = len(each)
    return row


def run(name: str, length: int, told: argparse.Namespace, until: float) -> dict[str, Any]:
    """One row."""
    case = CASES[name]
    batch = 1 if told.tiny else max(1, case.batch * case.length // length)
    row: dict[str, Any] = {"case": name, "length": length, "batch": batch}
    row |= {"device": told.device, "tiny": told.tiny, "transformers_version": T.__version__}
    row |= gate(case, length, told.tiny, told.device)
    if row["status"] != "ok":
        return row
    dtype = torch.bfloat16 if told.device == "cuda" and case.half else torch.float32
    row["dtype"] = str(dtype)
    torch.manual_seed(0)
    with torch.device(told.device):
        theirs = case.make(length, told.tiny, 0.1, None).to(dtype).train()
    models = {"transformers": theirs, "weft": accelerate(copy.deepcopy(theirs))}
    given = to(repeated(case.read(theirs, length), batch), told.device, dtype)
    row |= measured(models, given, told.device, told.rounds, until)
    if row["transformers_ms"] and row["weft_ms"]:
        row["faster"] = row["transformers_ms"] / row["weft_ms"]
        if told.device == "cuda":
            row["memory"] = row["weft_peak_gib"] / row["transformers_peak_gib"]
    return row


def cells(told: argparse.Namespace) -> list[tuple[str, int]]:
    """The cases and their lengths: all at the length asked for, then at their own."""
    names = told.cases.split(",")
    if told.tiny:
        return [(name, told.length or 64) for name in names]
    own = [(name, CASES[name].length) for name in names]
    return list(dict.fromkeys([(name, told.length or length) for name, length in own] + own))


def known(path: Path | None) -> set[tuple[str, int]]:
    """The cells that the file has."""
    if path is None or not path.exists():
        return set()
    return {(row["case"], row["length"]) for row in read(path) if row["status"] == "ok"}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, help="rows are appended here")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--length", type=int, help="tokens; default: each case has its own")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=150.0, help="no case starts after that")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def main() -> int:
    told, wrong = options(), 0
    start = time.monotonic()
    done = known(told.out)
    left = [cell for cell in cells(told) if cell not in done]
    for at, (name, length) in enumerate(left):
        seconds = start + told.seconds - time.monotonic()
        if seconds <= 0:
            print(f"no time left for {', '.join(f'{n} at {m}' for n, m in left[at:])}")
            break
        begin = time.monotonic()
        try:
            row = run(name, length, told, begin + seconds / (len(left) - at))
        except Exception as problem:  # of any kind, in any version: the next cell is run
            text = f"{type(problem).__name__}: {problem}"[:500]
            row = {"case": name, "length": length, "status": text}
            print(traceback.format_exc(), file=sys.stderr)
        wrong |= row["status"] != "ok"
        row |= {"seconds": time.monotonic() - begin, **environment(told.device)}
        if told.device == "cuda":
            torch.cuda.empty_cache()
        print(json.dumps(row), flush=True)
        if told.out is not None:
            append(told.out, [row])
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
