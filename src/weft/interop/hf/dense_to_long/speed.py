"""Prefill of a long row and what is kept for decoding, dense and under patterns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from weft.interop.hf.dense_to_long.form import form_of, is_decoder, restore
from weft.interop.hf.plug.use import cache, use


@torch.inference_mode()
def prefill_cost(
    model: PreTrainedModel, row: Tensor, rounds: int = 5
) -> dict[str, dict[str, float]]:
    """Of a converted model on row (1, n): seconds, bytes at the peak, bytes kept for decoding.

    "dense" is the same model under Transformers' own attention; the two take turns. The times are
    medians of `rounds` after one that is not counted.
    """
    assert form_of(model) is not None
    row = row.long().to(model.device)
    cases: Mapping[str, Callable[[], Any]] = {
        "dense": lambda: use(model, None),
        "sparse": lambda: restore(model),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    found: dict[str, dict[str, float]] = {name: {} for name in cases}
    model.eval()
    for turn in range(rounds + 1):
        for name, prepare in cases.items():
            prepare()
            taken, peak, kept = _once(model, row, name == "sparse")
            if turn:
                seconds[name].append(taken)
            found[name] |= {"peak_bytes": peak, "state_bytes": kept}
    restore(model)
    return {name: {"seconds": median(seconds[name]), **each} for name, each in found.items()}


def _once(model: PreTrainedModel, row: Tensor, sparse: bool) -> tuple[float, float, float]:
    """Seconds, bytes at the peak above the weights, bytes of the cache."""
    given: dict[str, Any] = {}
    if is_decoder(model):
        own = cache(model) if sparse else DynamicCache(config=model.config)
        given = {"past_key_values": own, "use_cache": True, "logits_to_keep": 1}
    gpu = row.device.type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        torch.cuda.synchronize()
    began = time.perf_counter()
    model(input_ids=row, **given)
    if gpu:
        torch.cuda.synchronize()
    taken = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated() - before if gpu else 0
    return taken, peak, kept_bytes(given["past_key_values"]) if given else 0


def kept_bytes(held: Any) -> int:
    """Bytes of the keys and values of a cache."""
    both = ((layer.keys, layer.values) for layer in held.layers)
    return sum(x.numel() * x.element_size() for pair in both for x in pair if x is not None)


def compile_between(model: PreTrainedModel) -> None:
    """Compile the norms and feed-forwards of a decoder's layers; attention runs as it is."""
    body: Any = model.base_model
    for layer in body.layers:
        for name in ("input_layernorm", "post_attention_layernorm", "mlp"):
            part = getattr(layer, name, None)
            if part is not None:
                part.compile()
