"""Training speed and memory in Long Range Arena's text setting, every mechanism, 1K to 16K tokens.

    python benchmarks/cases/lra_speed.py --out benchmarks/results/h200_lra_text_speed.jsonl

The recipe `lra_text` (4 layers, 256 wide, 4 heads, batch 32), bfloat16, whole updates with AdamW;
random bytes that fill the length, so no mechanism gains by padding. Dense attention is timed before
and after the others at every length (the slowest come behind), and the ratio is to their mean. An
update is recorded once and replayed ("graph"), or, where that is not possible or not worth it, as
Python starts it ("eager").
"""

import argparse
import dataclasses
import gc
import statistics
import time

import torch

from weft.arena.experiment.runs import model_of, own_objective
from weft.arena.experiment.settings import read_settings, with_mixer
from weft.arena.grid.grid import sized
from weft.environment import environment
from weft.mixers import MIXERS
from weft.objectives import Batch
from weft.rows import append
from weft.training import Stage, TrainingSettings
from weft.training.learner import Learner

BATCH = 32
SLOWEST = ("lstm", "sru", "gru", "entmax", "brc")  # behind the second turn of dense attention
SLOW = 0.5  # seconds: an update that takes longer gains nothing from being recorded
VERY_SLOW = 4.0  # seconds of a first update, after which one more is timed


class Same:
    """One batch of random bytes, for ever."""

    def __init__(self, batch: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, (batch, length), generator=generator)
        self.made = Batch(x=x, y=torch.randint(0, 2, (batch,), generator=generator))

    def batch(self, step: int) -> Batch:
        return self.made


def contenders(names: list[str], length: int) -> dict[str, str]:
    """Labels and specs: the recipe's where it has one, else the defaults."""
    recipe = read_settings("lra_text").mixers
    special = {"reformer": f"reformer(chunk={length // 10 + 1}, rounds=1, buckets=10, lookback=1)"}
    known = {label: one.mixer for label, one in recipe.items()}
    return {name: special.get(name) or known.get(name, name) for name in names}


def learner(spec: str, batch: int, length: int, graph: bool) -> Learner:
    """A learner whose first update is still to come."""
    experiment = read_settings("lra_text").experiment
    task = sized(experiment.task, length)
    setting, objective = experiment.training, own_objective(task)
    config = model_of(dataclasses.replace(with_mixer(experiment, spec), task=task))
    settings = TrainingSettings(
        steps=1000, batch=batch, lr=setting.lr, schedule="rsqrt", warmup=8000, decay="all",
        weight_decay=0.1, clip=None, precision="bfloat16", graph=graph,
    )  # fmt: skip
    stage = Stage(model=config, objective=objective, source=Same(batch, length), settings=settings)
    return Learner(stage, 0, torch.device("cuda"))


def steps(one: Learner, batch: Batch, count: int, least: float = 0.0) -> list[float]:
    """Seconds of updates: `count` of them, or as many as fill `least` seconds."""
    times: list[float] = []
    while len(times) < count or sum(times) < least:
        start = time.perf_counter()
        one.step(batch, len(times), len(times))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times


def measure(spec: str, size: int, length: int) -> dict:
    """Steps per second and peak memory of updates, or the reason why there are none."""
    one = batch = None
    try:
        one, batch, before = fresh(spec, size, length, graph=False)
        first = steps(one, batch, 1)  # kernels are built and chosen
        times = steps(one, batch, 1 if first[0] > VERY_SLOW else 2)
        found = {"mode": "eager", "peak_bytes": torch.cuda.max_memory_allocated() - before}
        found["eager_steps_per_second"] = 1 / min(times)
        found["parameters"] = sum(p.numel() for p in one.model.parameters())
        if min(times) < SLOW:
            try:
                one = batch = None
                one, batch, _ = fresh(spec, size, length, graph=True)
                steps(one, batch, 5)
                times, found["mode"] = steps(one, batch, 3, least=0.25), "graph"
            except Exception as error:
                found["not_recorded"] = said(error)
                one, batch, _ = fresh(spec, size, length, graph=False)
                times = steps(one, batch, 6)[2:]
        found |= {"steps_per_second": 1 / statistics.median(times), "rounds": len(times)}
        return found
    except Exception as error:  # a mechanism that fails is a row, not the end
        return {"error": said(error)}
    finally:
        one = batch = None


def fresh(spec: str, batch: int, length: int, graph: bool) -> tuple[Learner, Batch, int]:
    """A learner, its batch, and the bytes that were held before them."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    one = learner(spec, batch, length, graph)
    return one, one.stage.source.batch(0).to("cuda"), before


def said(error: Exception) -> str:
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--lengths", default="1024,4096,16384,2048,8192")
    parser.add_argument("--mixers", default=",".join(sorted(MIXERS)))
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--minutes", type=float, default=60.0)
    args = parser.parse_args()
    began = time.perf_counter()
    names = [name for name in args.mixers.split(",") if name != "full"]
    last = [name for name in SLOWEST if name in names]
    turns = ["full", *(name for name in names if name not in last), "full", *last]
    stamp = environment("cuda")
    for length in (int(n) for n in args.lengths.split(",")):
        for turn, name in enumerate(turns):
            if time.perf_counter() - began > 60 * args.minutes:
                print("out of time", flush=True)
                return
            spec = contenders([name], length)[name]
            row = {
                "case": name, "mixer": spec, "length": length, "batch": args.batch, "turn": turn,
                "dtype": "bfloat16", "device": "cuda", **measure(spec, args.batch, length), **stamp,
            }  # fmt: skip
            append(args.out, [row])
            speed, peak = row.get("steps_per_second", 0), row.get("peak_bytes", 0) >> 20
            print(length, name, row.get("mode"), f"{speed:.2f}/s {peak} MiB", end=" ")
            print(row.get("error") or row.get("not_recorded") or "", flush=True)


if __name__ == "__main__":
    main()
