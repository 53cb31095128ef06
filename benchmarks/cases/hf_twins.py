"""Transformers' Longformer and LED against the same models with weft's attention.

    python benchmarks/cases/hf_twins.py --device cuda >> benchmarks/results/hf_twins.jsonl
    python benchmarks/cases/hf_twins.py --device cpu --length 64 --tiny

Forward and backward of a whole model of base size, bfloat16 on a GPU. Logits are compared first, in
float32 at a short length; a case whose logits differ gets no time. The two take turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from statistics import median

import torch
import transformers as T

from weft.environment import environment
from weft.interop import accelerate

TOLERANCE = 1e-3


def longformer(length: int, tiny: bool):
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 64, "vocab_size": 100}  # fmt: skip
    window = 8 if tiny else 512
    sizes = small if tiny else {"vocab_size": 50265}
    config = T.LongformerConfig(
        max_position_embeddings=length + 2, attention_window=window, **sizes
    )
    return T.LongformerModel(config, add_pooling_layer=False)


def led(length: int, tiny: bool):
    small = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "encoder_ffn_dim": 64,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 64,
             "vocab_size": 100}  # fmt: skip
    base = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
            "encoder_attention_heads": 12, "decoder_attention_heads": 12,
            "decoder_ffn_dim": 3072}  # fmt: skip
    config = T.LEDConfig(
        max_encoder_position_embeddings=length,
        attention_window=8 if tiny else 512,
        **(small if tiny else base),
    )
    return T.LEDModel(config)


CASES = {"longformer": longformer, "led": led}


def inputs(model, length: int, device: str):
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size, (1, length), generator=draw).to(device)
    marked = torch.zeros_like(ids)
    marked[:, 0] = 1
    return {"input_ids": ids, "global_attention_mask": marked}


def gate(theirs, ours, length: int, device: str) -> float:
    """How far the outputs are apart in float32."""
    short = inputs(theirs, min(length, 2048), device)
    with torch.no_grad():
        one, two = (m.float().eval()(**short).last_hidden_state for m in (theirs, ours))
    return float((one - two).abs().max())


def measured(models, given, device: str, rounds: int) -> dict[str, dict[str, float]]:
    seconds = {name: [] for name in models}
    memory = dict.fromkeys(models, 0.0)
    for turn in range(rounds + 1):
        for name, model in models.items():
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                torch.cuda.synchronize()
            start = time.perf_counter()
            model(**given).last_hidden_state.float().square().mean().backward()
            if device == "cuda":
                torch.cuda.synchronize()
                memory[name] = torch.cuda.max_memory_allocated() / 2**30
            if turn:  # the first is a warm-up
                seconds[name].append(time.perf_counter() - start)
            model.zero_grad(set_to_none=True)
    return {n: {"ms": 1e3 * median(s), "peak_gib": memory[n]} for n, s in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    told = parser.parse_args()
    wrong = 0
    for name, make in CASES.items():
        torch.manual_seed(0)
        theirs = make(told.length, told.tiny).to(told.device)
        ours = accelerate(copy.deepcopy(theirs))
        error = gate(theirs, ours, told.length, told.device)
        row = {"case": name, "length": told.length, "device": told.device, "error": error}
        if error > TOLERANCE:
            row["status"], wrong = "logits differ", 1
        else:
            dtype = torch.bfloat16 if told.device == "cuda" else torch.float32
            models = {"transformers": theirs, "weft": ours}
            models = {key: model.to(dtype).train() for key, model in models.items()}
            given = inputs(theirs, told.length, told.device)
            row |= measured(models, given, told.device, told.rounds)
            row["faster"] = row["transformers"]["ms"] / row["weft"]["ms"]
            row["status"] = "ok"
        print(json.dumps(row | {"environment": environment(told.device)}), flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
