"""A dense model of 8K tokens made a sparse one of 32K, against the original: loss, speed, state.

    python benchmarks/cases/dense_to_long.py --model FOLDER --tokens novels.npz --out F [--work F]
    python benchmarks/cases/dense_to_long.py --tiny --out FOLDER

`--tokens` holds `train`, whole novels end to end, `ends`, where each ends, and `held` (r, 32768),
starts of novels that training never sees. Parts, in this order; what is known already is skipped:

    original   as it is: at once, and in chunks of its own length
    layers     which layers gain most by reading far: the greedy probe on training novels
    mixes      patterns by layer before training: loss, state, and prefill with compiled norms and
               feed-forwards, dense too; the best are trained (--mix: these and no others)
    chunks     the original trained at its own length on the same tokens
    long       the converted model trained on long rows: the best mixes, one after another
    compiled   prefill of these mixes with compiled norms and feed-forwards, dense too
    dense      dense attention on long rows, every base times 16, trained on the same tokens

The code is that of `weft convert`. On a GPU machine that takes few megabytes at a time and has
torch 2.11 and Transformers 5.17, or later: write the files here (first line), send each part in a
call of its own and copy it there to a folder W that stays (second line), then run everything in one
call of ten minutes (the rest):

    python benchmarks/cases/dense_to_long_data.py --model M.gguf --novels N.jsonl --out carry
    mkdir -p W && cp carry/* W/
    cat W/model.tar.* | tar x -C W && PYTHONPATH=src python benchmarks/cases/dense_to_long.py \\
        --model W/model --tokens W/novels.npz --work W/states --seconds 540 --out "$OUT"

A second call with the same --out and --work goes on: rows that are there are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from weft.environment import environment
from weft.interop.hf.dense_to_long.form import form_of, lengthen, set_form
from weft.interop.hf.dense_to_long.losses import CausalLosses, bins_of, in_bins, loss_by_position
from weft.interop.hf.dense_to_long.probe import by_layer, probe_layers
from weft.interop.hf.dense_to_long.source import in_precision, read_original
from weft.interop.hf.dense_to_long.speed import compile_between, prefill_cost
from weft.interop.hf.dense_to_long.training import ContinuedTraining, continue_training
from weft.rows import append, read

LOSSES = CausalLosses()
PARTS = ("original", "layers", "mixes", "chunks", "long", "compiled", "dense")


class Sizes(NamedTuple):
    """Lengths and counts of a study."""

    length: int = 32_768
    trained: int = 8_192
    window: int = 1_024
    far: int = 8  # layers that the probe ranks
    together: int = 2  # of these, chosen in each of its rounds
    probe_rows: int = 2
    mix_rows: int = 6
    rounds: int = 5


TINY = Sizes(256, 64, 16, 2, 1, 1, 2, 1)


class Study(NamedTuple):
    """The data of a study, and where its results go."""

    sizes: Sizes
    told: argparse.Namespace
    train: torch.Tensor  # (r, length)
    held: torch.Tensor
    rows: Path

    def note(self, part: str, variant: str, **values: Any) -> None:
        """Append a row."""
        given = {"part": part, "variant": variant, **values}
        flat = {k: v for key, each in given.items() for k, v in _flat(key, each)}
        append(self.rows, [flat | environment(self.told.device)])
        print(json.dumps(flat), flush=True)

    def known(self, part: str) -> list[dict[str, Any]]:
        """The rows of a part that are there."""
        found = read(self.rows) if self.rows.exists() else []
        return [row for row in found if row["part"] == part]

    def losses(self, model: Any, rows: torch.Tensor, chunk: int | None = None) -> dict[str, Any]:
        """Losses in spans of positions, and in 64 spans for a curve."""
        by_place = loss_by_position(model, rows, LOSSES, chunk)
        points = by_place.view(64, -1).nanmean(1)
        curve = ",".join(f"{x:.4f}" for x in points)
        found = in_bins(by_place, bins_of(rows.shape[1], self.sizes.trained))
        return {f"loss_{span}": loss for span, loss in found.items()} | {"curve": curve}

    def model(self) -> Any:
        """The original, in the precision of the passes."""
        gpu = self.told.device == "cuda"
        if self.told.tiny:
            torch.manual_seed(0)
            made: Any = LlamaForCausalLM(LlamaConfig(
                vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                eos_token_id=None,
            ))  # fmt: skip
        else:
            made = read_original(self.told.model, None, torch.float32).model
        dtype = torch.bfloat16 if gpu else torch.float32
        made = in_precision(made, dtype)
        return made.to(self.told.device).eval()

    def settings(self, length: int) -> ContinuedTraining:
        """The same for all: a row of the long length in a step, or the chunks of one."""
        rows = self.sizes.length // length
        steps = max(2, int(self.told.tokens_used) // self.sizes.length)
        return ContinuedTraining(
            rate=self.told.rate, batch=rows, micro=rows, steps=min(steps, self.told.steps or steps),
            every=100.0, warmup=0.08, shuffle=False,
        )  # fmt: skip


def _flat(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [pair for inner, each in value.items() for pair in _flat(f"{key}.{inner}", each)]
    return [(key, json.dumps(value) if isinstance(value, list | tuple) else value)]


def near_far(sizes: Sizes) -> tuple[str, str]:
    """What most layers read, and what a few do: no key at an untrained distance."""
    first = "keys(first=4)"
    return f"sliding({sizes.window}) | {first}", f"sliding({sizes.trained}) | {first}"


def mixes(sizes: Sizes, ranked: list[int]) -> dict[str, tuple[dict[str, str], float]]:
    """Patterns by layer and the rotary factor of the layers that read beyond the trained length."""
    near, far = near_far(sizes)
    half = f"sliding({sizes.window // 2}) | keys(first=4)"
    wide = f"{near} | columns({max(2, sizes.window // 128)})"
    coarse = f"{near} | columns({max(2, sizes.window // 16)})"
    text = lambda layers: ",".join(map(str, sorted(layers)))  # noqa: E731
    if len(ranked) < 8:
        few = {"*": near, text(ranked[:1]): far, text(ranked[1:2]): wide}
        return {"1 far": (by_layer(near, far, ranked[:1]), 1.0), "1 far, 1 columns": (few, 4.0)}
    found = {f"{k} far": (by_layer(near, far, ranked[:k]), 1.0) for k in (8, 6, 5, 4)}
    found["6 far, near halved"] = (by_layer(half, far, ranked[:6]), 1.0)
    for k, factor in ((4, 4.0), (4, 16.0), (5, 4.0)):
        patterns = {"*": near, text(ranked[:k]): far, text(ranked[k : k + 2]): wide}
        found[f"{k} far, 2 columns, base x{factor:g}"] = (patterns, factor)
    found["windows alone"] = ({"*": near}, 1.0)
    found["every fifth columns, base x16"] = (by_layer(near, coarse, range(0, 30, 5)), 16.0)
    return found


def run_original(study: Study) -> None:
    model = study.model()
    study.note("original", "chunks", **study.losses(model, study.held, study.sizes.trained))
    study.note("original", "at once", **study.losses(model, study.held))


def run_layers(study: Study) -> None:
    model, sizes = study.model(), study.sizes
    lengthen(model, sizes.length, {"*": near_far(sizes)[0]})
    rows = study.train[:: max(1, len(study.train) // sizes.probe_rows)][: sizes.probe_rows]
    rows = rows[:, : 2 * sizes.trained]
    began, chosen = time.perf_counter(), []
    found = probe_layers(model, rows, LOSSES, *near_far(sizes), sizes.far, together=sizes.together)
    for trial in found:
        chosen.append(trial)
        print(trial, f"{time.perf_counter() - began:.1f} s", flush=True)
    study.note("layers", "greedy", ranked=[t.layer for t in chosen],
               losses=[t.loss for t in chosen], seconds=time.perf_counter() - began)  # fmt: skip


def run_mixes(study: Study) -> None:
    model, sizes = study.model(), study.sizes
    lengthen(model, sizes.length, {"*": near_far(sizes)[0]})
    compile_between(model)
    rows = study.train[1 :: max(1, len(study.train) // sizes.mix_rows)][: sizes.mix_rows]
    done = {row["variant"] for row in study.known("mixes")}
    for name, (patterns, factor) in offered_mixes(study).items():
        if name in done:
            continue
        set_form(model, patterns, factor)
        ratios = ratios_of(prefill_cost(model, rows[:1], max(1, sizes.rounds - 2)))
        found = study.losses(model, rows)
        study.note("mixes", name, patterns=json.dumps(patterns), factor=factor, **ratios, **found)


def offered_mixes(study: Study) -> dict[str, tuple[dict[str, str], float]]:
    """All mixes, or those asked for, with the layers that the probe ranked first."""
    probed = study.known("layers")
    if probed:
        ranked = json.loads(probed[-1]["ranked"])
    else:  # the probe was left out
        ranked = [2, 5, 9, 12, 16, 19, 23, 26][: study.sizes.far]
        print(f"no layers were ranked; these are taken: {ranked}", flush=True)
    found = mixes(study.sizes, ranked)
    return {name: found[name] for name in study.told.mix or found}


def ratios_of(cost: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Costs, and how many times cheaper the sparse model is."""
    dense, sparse = cost["dense"], cost["sparse"]
    faster = dense["seconds"] / sparse["seconds"]
    return cost | {"faster": faster, "smaller": dense["state_bytes"] / sparse["state_bytes"]}


def run_chunks(study: Study) -> None:
    model, chunk = study.model(), study.sizes.trained
    rows = study.train.view(-1, chunk)
    # A step reads the chunks of one long row: the order of the long rows, cut.
    train(study, model, rows, study.settings(chunk), "chunks", "trained in chunks", chunk)


def run_long(study: Study) -> None:
    done = {row["variant"] for row in study.known("long")}
    for name, (patterns, factor) in chosen_mixes(study).items():
        if name in done:
            continue
        model = study.model()
        lengthen(model, study.sizes.length, patterns, rotary_factor=factor)
        train(study, model, study.train, study.settings(study.sizes.length), "long", name)


def chosen_mixes(study: Study) -> dict[str, tuple[dict[str, str], float]]:
    """The best by loss of those that are fast and small enough; without measures, as offered."""
    last, told = f"loss_{study.sizes.length // 2}-{study.sizes.length}", study.told
    offered = offered_mixes(study)
    rows = [row for row in study.known("mixes") if row["variant"] in offered]
    if not rows:
        return dict(list(offered.items())[: told.longs])
    fit = [r for r in rows if r["smaller"] >= 10 and r["faster"] >= told.faster]
    fit = fit or sorted(rows, key=lambda row: -row["faster"])[: told.longs]
    best = sorted(fit, key=lambda row: row[last])[: told.longs]
    return {row["variant"]: offered[row["variant"]] for row in best}


def run_dense(study: Study) -> None:
    model, sizes = study.model(), study.sizes
    lengthen(model, sizes.length, "full()", rotary_factor=16.0)
    train(study, model, study.train, study.settings(sizes.length), "dense", "dense, base x16")


def train(
    study: Study, model: Any, rows: torch.Tensor, settings: ContinuedTraining, part: str,
    variant: str, chunk: int | None = None,
) -> None:  # fmt: skip
    """Continued training, then the held-out losses; state in the work folder."""
    folder = None
    if study.told.work:
        folder = Path(study.told.work) / "".join(c if c.isalnum() else "_" for c in variant)
        folder.mkdir(parents=True, exist_ok=True)
    order = study_order(study, rows)
    shown = [0.0]

    def show(p: Any) -> None:
        if time.monotonic() > study.told.until:
            raise TimeoutError(f"{variant} stopped at step {p.step}: --seconds are over")
        if time.monotonic() - shown[0] > 5 or p.step == p.steps:
            shown[0] = time.monotonic()
            print(f"{variant}: {p.step}/{p.steps} loss {p.loss:.4f} {p.seconds:.0f} s "
                  f"{p.tokens / p.seconds:,.0f} tokens/s", flush=True)  # fmt: skip

    if study.told.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seen = continue_training(model, rows[order], LOSSES, settings, folder, show)
    peak = torch.cuda.max_memory_allocated() / 2**30 if study.told.device == "cuda" else None
    found = study.losses(model, study.held, chunk)
    cost = {}
    if form_of(model) is not None and part == "long":
        plain = ratios_of(prefill_cost(model, study.held[:1], study.sizes.rounds))
        cost = {"prefill": plain, "form": json.dumps(form_of(model).__dict__)}
    tokens = seen["steps"] * settings.batch * rows.shape[1]
    study.note(part, variant, steps=seen["steps"], tokens=tokens, seconds=seen["seconds"],
               peak_gib=peak, rate=settings.rate, **found, **cost)  # fmt: skip


def run_compiled(study: Study) -> None:
    for name, (patterns, factor) in chosen_mixes(study).items():
        model = study.model()
        lengthen(model, study.sizes.length, patterns, rotary_factor=factor)
        compile_between(model)
        cost = prefill_cost(model, study.held[:1], study.sizes.rounds)
        study.note("compiled", name, **ratios_of(cost))


def study_order(study: Study, rows: torch.Tensor) -> torch.Tensor:
    """All rows, those of a long row together: every variant reads the same tokens in a step."""
    each = study.sizes.length // rows.shape[1]
    long = torch.randperm(len(study.train), generator=torch.Generator().manual_seed(1))
    return (long[:, None] * each + torch.arange(each)).flatten()


def read_data(told: argparse.Namespace, sizes: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of training novels, none across two of them, and held-out rows."""
    if told.tiny:
        drawn = torch.randint(100, (8, 1), generator=torch.Generator().manual_seed(0))
        line = (drawn * 7 + torch.arange(sizes.length) * (1 + drawn % 5)) % 100
        return line[:6], line[6:]
    data = np.load(told.tokens)
    train, ends, length = data["train"], data["ends"], sizes.length
    starts = np.concatenate(([0], ends[:-1]))
    rows = [
        train[at : at + length]
        for start, end in zip(starts, ends, strict=True)
        for at in range(start, end - length + 1, length)
    ]
    as_tensor = lambda x: torch.from_numpy(np.asarray(x).astype(np.int32))  # noqa: E731
    return as_tensor(np.stack(rows)), as_tensor(data["held"][:, :length])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens")
    parser.add_argument("--out", required=True, help="rows: dense_to_long.jsonl there")
    parser.add_argument("--work", help="states of trainings, to go on from; none: not kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS[:-1]))
    parser.add_argument("--tokens-used", type=float, default=5.2e6)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--longs", type=int, default=2, help="how many mixes are trained")
    parser.add_argument("--mix", action="append", help="measure and train this one; repeatable")
    parser.add_argument("--faster", type=float, default=3.05, help="prefill of a mix, at least")
    parser.add_argument("--seconds", type=float, default=540, help="nothing is begun after these")
    parser.add_argument("--length", type=int, default=32_768, help="4 times the trained length")
    parser.add_argument("--tiny", action="store_true")
    told = parser.parse_args()
    own = Sizes(told.length, told.length // 4, told.length // 32)
    sizes = TINY if told.tiny else own
    study = Study(sizes, told, *read_data(told, sizes), Path(told.out) / "dense_to_long.jsonl")
    print(f"{len(study.train)} rows to train on, {len(study.held)} held out", flush=True)
    began = time.monotonic()
    failed, told.until = 0, began + told.seconds
    for part in told.parts.split(","):
        if time.monotonic() > told.until:
            print(f"{part} is left out: --seconds are over", flush=True)
            continue
        if part not in ("long", "mixes") and study.known(part):
            continue
        try:
            globals()[f"run_{part}"](study)
        except Exception:  # the parts after it need not wait for it
            traceback.print_exc()
            failed += 1
        print(f"== {part}: {time.monotonic() - began:.0f} s in all", flush=True)
        if told.device == "cuda":
            torch.cuda.empty_cache()
    return failed


if __name__ == "__main__":
    sys.exit(main())
