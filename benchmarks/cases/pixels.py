"""CIFAR-10 as 3,072 bytes: strided sparse attention against dense attention at equal time.

    PYTHONPATH=src python benchmarks/cases/pixels.py --data FOLDER --out OUT --seconds 570
    python benchmarks/cases/pixels.py --data FOLDER --out OUT --tiny        # seconds, on a CPU

FOLDER, whose name stands in the rows, holds train.npz and test.npz with x (n, 32, 32, 3) uint8 and
y (n,). The contenders are the same decoder of bytes with another mixer. Each is trained by a
process of its own; all are ready before the clocks start, and train side by side for the same
seconds, on one GPU if there is one. Validations do not count. Then each draws pictures, completes
halves, and has a linear probe fitted to its layers. `--seconds` is for everything; about two
thirds of it are training.

OUT/rows.jsonl: `curve` (bits per dimension of the same test pictures over training seconds),
`result` (of more test pictures), `sampled`, `probe` (accuracy by layer). OUT/NAME_samples.png, and
OUT/NAME_completions.png: the half that was given, completions, the picture itself. A contender that
has its rows is not trained again.

Paper: Child et al. 2019, https://arxiv.org/abs/1904.10509, table 1: 2.80 bits per dimension strided
against 2.82 dense, 59M parameters, 128 layers.
"""

import argparse
import json
import math
import multiprocessing
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from weft.arena.data.examples import Examples, TokenRows
from weft.environment import environment
from weft.generate import Sampling, sample_pictures
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Encoder, Stack
from weft.objectives import Batch, PixelLM
from weft.pictures.coding import PictureCoding
from weft.pictures.drawing import BACKGROUND, grid, write_png
from weft.pictures.files import read_npz
from weft.rows import append, read
from weft.training import TrainingSettings, score
from weft.training.data.source import Ordered, Shuffled
from weft.training.learner import Learner
from weft.training.optimiser import set_rate
from weft.training.probe import linear_probes
from weft.training.run import Stage

OBJECTIVE = PixelLM(unit="dimension")
CONTENDERS = {
    "dense": "full",
    "strided": "sparse_transformer(stride={row})",
    "strided_in_turns": "sparse_transformer(stride={row}, integration='interleaved')",
}
FAST = ({"compile": True, "graph": True}, {"compile": False, "graph": False})  # tried in this order
TRAINING, AFTER = 0.66, 0.25  # shares of the seconds: the most for training, the least after it
PROBED = 5_000  # pictures that probes are fitted on
COMPLETIONS = 3  # of each half


class Sizes(NamedTuple):
    """Of the model, its batches and what is looked at."""

    layers: int = 8
    dim: int = 256
    heads: int = 4
    batch: int = 32
    lr: float = 1e-3
    warmup: int = 200
    watched: int = 256  # test pictures of each point of a curve
    tested: int = 2_048  # whole batches: one shape
    points: int = 12
    samples: int = 24


TINY = Sizes(layers=2, dim=16, heads=2, batch=2, warmup=2, watched=4, tested=4, points=2, samples=2)


class Job(NamedTuple):
    """What one process trains."""

    name: str
    data: Path
    out: Path
    began: float  # of time.time(), the same for all
    seconds: float
    sizes: Sizes
    side: int  # pixels of a picture's side: 32, or fewer for a try
    device: str


class Pictures:
    """The pictures of a folder as tokens."""

    def __init__(self, folder: Path, side: int) -> None:
        self.coding = PictureCoding(form="rgb", height=side, width=side)
        self.splits = {name: self._split(folder / f"{name}.npz") for name in ("train", "test")}

    def _split(self, path: Path) -> Examples:
        pictures, labels = read_npz(path)
        if labels is None:
            raise SystemExit(f"{path} has no labels y")
        side = self.coding.height
        tokens = self.coding.encode(np.ascontiguousarray(pictures[:, :side, :side]))
        starts = np.arange(len(tokens) + 1) * self.coding.length
        rows = TokenRows(tokens.ravel(), starts)
        return Examples(rows, self.coding.length, labels=labels.astype(np.int64))

    def some(self, split: str, count: int, batch: int) -> Iterator[Batch]:
        """The first pictures of a split, in batches."""
        count = min(count, len(self.splits[split]))
        for start in range(0, count, batch):
            yield self.splits[split].batch(np.arange(start, min(start + batch, count)))


class Contender:
    """One model in training."""

    def __init__(self, job: Job, pictures: Pictures, fast: dict[str, bool]) -> None:
        self.job, self.pictures, self.sizes = job, pictures, job.sizes
        cuda = job.device == "cuda"
        settings = TrainingSettings(
            steps=10**9, batch=job.sizes.batch, lr=job.sizes.lr, schedule="constant",
            precision="bfloat16" if cuda else "float32", device=job.device, betas=(0.9, 0.95),
            **(fast if cuda else {}),
        )  # fmt: skip
        source = Shuffled(rows=pictures.splits["train"], batch_size=job.sizes.batch)
        self.stage = Stage(
            model=self.model(), objective=OBJECTIVE, source=source, settings=settings
        )
        self.learner = Learner(self.stage, 0, settings.torch_device())
        self.fast, self.step, self.trained = any(fast.values()) and cuda, 0, 0.0

    def model(self) -> Any:
        """A language model of bytes."""
        coding, sizes = self.pictures.coding, self.sizes
        mixer = MIXERS.parse(CONTENDERS[self.job.name].format(row=coding.row))
        frame = Frame(dim=sizes.dim, heads=sizes.heads, length=coding.length)
        stack = Stack(frame=frame, mixer=mixer, order="sf" * sizes.layers)
        embedding = Embedding(vocab=coding.vocab, positions="learned")
        return OBJECTIVE.build(Encoder(embedding=embedding, stack=stack))

    def update(self, rate: float) -> None:
        """One step of AdamW."""
        learner = self.learner
        batch = self.stage.source.batch(self.step).to(learner.device)
        set_rate(learner.optimiser, rate)
        (learner.recorder or learner).learn(batch, self.step)
        self.step += 1

    def warm_up(self) -> None:
        """Compile and record, at a rate of almost nothing."""
        for _ in range(4):
            self.update(1e-12)
        self.bits(self.sizes.batch)
        self.wait()

    def train(self, seconds: float, tell: Callable[[], None]) -> None:
        """For so many seconds, a cosine down to 0; `tell` is called at points between."""
        points = [seconds * (at + 1) / self.sizes.points for at in range(self.sizes.points)]
        first = self.step
        while self.trained < seconds:
            began = time.perf_counter()
            for _ in range(5):
                way = min(1.0, self.trained / seconds)
                rise = min(1.0, (self.step - first + 1) / self.sizes.warmup)
                self.update(self.sizes.lr * rise * 0.5 * (1 + math.cos(math.pi * way)))
            self.wait()
            self.trained += time.perf_counter() - began
            if self.trained >= points[0]:
                points = [point for point in points if point > self.trained] or [math.inf]
                tell()

    def bits(self, count: int) -> float | None:
        """Bits per dimension of the first test pictures; None where they are not finite."""
        rows = self.pictures.splits["test"]
        some = Examples(rows.rows.chosen(np.arange(min(count, len(rows)))), rows.length)
        source = Ordered(rows=some, batch_size=self.sizes.batch)
        precision = self.stage.settings.precision
        found = score(self.learner.model, source, OBJECTIVE, precision=precision)
        assert found is not None
        return found.score if math.isfinite(found.score) else None

    def plain(self) -> Any:
        """The model without compiled layers, which would compile again for every new shape."""
        model, learner = self.stage.model.build(), self.learner
        model.load_state_dict(learner.model.state_dict())
        half = learner.device.type == "cuda"
        return model.to(learner.device, torch.bfloat16 if half else torch.float32).eval()

    def wait(self) -> None:
        """Until the GPU has done what it was given."""
        if self.learner.device.type == "cuda":
            torch.cuda.synchronize()


def draw(one: Contender, model: Any, seconds: float, half: bool) -> dict[str, Any]:
    """Samples from nothing, or completions of upper halves, as PNG; how long it took."""
    coding, count = one.pictures.coding, one.sizes.samples
    test = one.pictures.splits["test"].rows
    if half:
        shown = [torch.from_numpy(test[at].astype(np.int64)) for at in range(max(1, count // 4))]
        given = [row[: coding.length // 2] for row in shown for _ in range(COMPLETIONS)]
    else:
        shown, given = [], [torch.empty(0, dtype=torch.int64)] * count
    began = time.perf_counter()
    sampling = Sampling(temperature=1.0, seed=0)
    found = sample_pictures(model, given, coding.length, sampling=sampling, seconds=seconds)
    drawn = [picture_of(row, coding) for row in found]
    columns = 8
    if half:
        per, columns = COMPLETIONS, COMPLETIONS + 2
        drawn = [
            each
            for at, row in enumerate(shown)
            for each in (
                picture_of(row[: coding.length // 2], coding),
                *drawn[at * per : (at + 1) * per],
                picture_of(row, coding),
            )
        ]
    kind = "completions" if half else "samples"
    write_png(one.job.out / f"{one.job.name}_{kind}.png", grid(drawn, columns, scale=3))
    whole = all(len(row) == coding.length for row in found)
    spent = round(time.perf_counter() - began, 1)
    return {"kind": "sampled", "what": kind, "rows": len(found), "whole": whole, "seconds": spent}


def picture_of(row: torch.Tensor, coding: PictureCoding) -> np.ndarray:
    """A row of tokens as pixels; what is not there is grey."""
    tokens = np.full((1, coding.length), BACKGROUND, dtype=np.int64)
    tokens[0, : len(row)] = row.cpu().numpy()
    return coding.decode(tokens)[0]


def probe(one: Contender, model: Any) -> list[dict[str, Any]]:
    """Accuracy of a linear classifier by layer."""
    size = one.sizes.batch

    def some(split: str, count: int) -> Iterator[Batch]:
        for batch in one.pictures.some(split, count, size):
            yield OBJECTIVE.read(model, batch.to(one.learner.device))

    tested = one.sizes.tested
    found = linear_probes(model, some("train", min(PROBED, 20 * tested)), some("test", tested))
    return [
        {"kind": "probe", "layer": each.layer, "accuracy": each.accuracy,
         "train_accuracy": each.train_accuracy}
        for each in found
    ]  # fmt: skip


def work(job: Job, ready: Any) -> None:
    """One process: warm up, wait for the others, train, look at the result."""
    pictures = Pictures(job.data, job.side)
    one = prepared(job, pictures)
    own = {"contender": job.name, "mixer": str(one.stage.model.trunk.stack.mixer)}
    own |= {"batch": job.sizes.batch, "length": one.pictures.coding.length}
    own |= {"parameters": sum(p.numel() for p in one.learner.model.parameters())}
    own |= {"layers": job.sizes.layers, "dim": job.sizes.dim, "fast": one.fast}
    own |= {"data": job.data.resolve().name, "pictures": len(pictures.splits["train"])}

    def say(*rows: dict[str, Any]) -> None:
        stamp = {"at": round(time.time() - job.began, 1)}
        append(job.out / "rows.jsonl", [{**own, **row, **stamp} for row in rows])
        print(job.name, *(json.dumps(row) for row in rows), flush=True)

    def tell() -> None:
        trained = {"seconds": round(one.trained, 2), "steps": one.step}
        say({"kind": "curve", "bits per dimension": one.bits(job.sizes.watched), **trained})

    try:
        ready.wait(timeout=max(30.0, job.seconds / 3))
    except threading.BrokenBarrierError:
        print(job.name, "trains alone: another did not get ready", flush=True)
    left = job.seconds * (1 - AFTER) - (time.time() - job.began)
    one.train(max(1, round(min(job.seconds * TRAINING, left))), tell)
    spent = {"seconds": round(one.trained, 2), "steps": one.step}
    pace = {"tokens per second": round(one.step * own["batch"] * own["length"] / one.trained)}
    found = {"kind": "result", "bits per dimension": one.bits(job.sizes.tested), **spent, **pace}
    say(found | environment(job.device))
    model = one.plain()
    say(*probe(one, model))
    for half, share in ((True, 0.5), (False, 1.0)):
        left = job.seconds - (time.time() - job.began)
        say(draw(one, model, max(left * share, 2.0), half))


def prepared(job: Job, pictures: Pictures) -> Contender:
    """A contender that has compiled, or the plain one, which is said."""
    for fast in FAST:
        try:
            one = Contender(job, pictures, fast)
            one.warm_up()
        except Exception:
            if fast is FAST[-1]:
                raise
            print(job.name, "does not compile or record, runs plainly:", flush=True)
            traceback.print_exc()
        else:
            return one
    raise AssertionError


def done(out: Path) -> set[str]:
    """Contenders with a result."""
    rows = read(out / "rows.jsonl") if (out / "rows.jsonl").exists() else []
    return {row["contender"] for row in rows if row["kind"] == "result"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480.0, help="for everything")
    parser.add_argument("--contenders", default="dense,strided")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=Sizes().layers)
    parser.add_argument("--dim", type=int, default=Sizes().dim)
    parser.add_argument("--batch", type=int, default=Sizes().batch)
    parser.add_argument("--tiny", action="store_true", help="a few steps of 8 × 8 pixels")
    args = parser.parse_args()
    sizes = Sizes()._replace(layers=args.layers, dim=args.dim, batch=args.batch)
    tiny = (TINY, 8, min(args.seconds, 6.0)) if args.tiny else (sizes, 32, args.seconds)
    names = [name for name in args.contenders.split(",") if name not in done(args.out)]
    if unknown := set(names) - set(CONTENDERS):
        parser.error(f"contenders are {', '.join(CONTENDERS)}; got {', '.join(unknown)}")
    args.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(max(1, len(names)))
    where = (args.data, args.out, time.time())
    jobs = [Job(name, *where, tiny[2], tiny[0], tiny[1], args.device) for name in names]
    processes = [context.Process(target=work, args=(job, ready)) for job in jobs]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max((process.exitcode or 0 for process in processes), default=0))


if __name__ == "__main__":
    main()
