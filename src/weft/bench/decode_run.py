"""One decoding benchmark: dense and sparse models take turns, a row for each.

There is a session for each way to run the dense model; the sparse ones are in all of them. Within a
session everything takes turns in one process, also the measurement of memory bandwidth from which
the floor is computed. The session where the dense model is faster counts: `counts` marks the rows
to quote. So dense models of tens of gigabytes are never in memory twice.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch

from weft.bench.decode_bytes import BUFFER, SIZES, numbers, reading, step_bytes
from weft.bench.decode_gate import agreement
from weft.bench.decode_paths import PATHS, TOTAL
from weft.bench.decode_setting import DecodeSetting
from weft.bench.decode_weights import check_memory, hollow
from weft.bench.llama import llama_clock
from weft.bench.timing import attempt, measure, quartiles
from weft.environment import environment
from weft.errors import WeftError
from weft.rows import Row

MEMORY = "memory"
ONCE = ("embed", "logits", "pick")  # parts outside the layers
FEEDFORWARD = ("controller", "feedforward")


@dataclass
class Contender:
    """A model on a path, what it has to read, and its timings."""

    kind: str  # dense, sparse or a rival
    path: str
    clock: Callable[[], dict[str, float]]
    parameters: int
    read: dict[str, int] | None = None  # None: unknown, for a rival
    agreement: float | None = None
    precision: dict[str, str] = field(default_factory=dict)
    readings: list[dict[str, float]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Kind and path."""
        return f"{self.kind} {self.path}"

    def turn(self) -> None:
        """Decode two tokens and time the second: the first wakes the threads."""
        self.clock()
        self.readings.append(self.clock())


@dataclass(kw_only=True)
class DecodeBench:
    """Which models are timed on which paths."""

    setting: DecodeSetting
    dense: tuple[str, ...] = ("torch", "native")
    sparse: tuple[str, ...] = ("native",)
    llama: tuple[str, ...] = ()  # precisions of llama.cpp
    buffer: int = BUFFER  # bytes read at a time to measure the bandwidth
    progress: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        for path in (*self.dense, *self.sparse):
            if path not in PATHS:
                raise WeftError(f"a path is one of {', '.join(PATHS)}; got {path!r}")
        if not self.dense or not self.sparse:
            raise WeftError("dense and sparse are compared: each needs at least one path")

    @property
    def steps(self) -> int:
        """How often `progress` will be called."""
        built = len(self.sparse) + len(self.llama) + len(self.dense)
        return built + len(self.dense) * self.setting.rounds

    def run(self) -> list[Row]:
        """All rows."""
        torch.manual_seed(0)
        lasting, failed = self._built([("sparse", path) for path in self.sparse])
        rivals, wrong = self._built([("llama.cpp", kind) for kind in self.llama])
        lasting, failed = [*lasting, *rivals], {**failed, **wrong}
        rows: list[Row] = []
        for path in self.dense:
            rows += self._session(path, lasting, failed)
        return _marked(rows)

    def _session(self, path: str, lasting: list[Contender], failed: dict[str, str]) -> list[Row]:
        dense, wrong = self._built([("dense", path)])
        failed, present = {**failed, **wrong}, [*dense, *lasting]
        for one in present:
            one.readings.clear()
        turns = {MEMORY: reading(self.buffer), **{one.name: one.turn for one in present}}
        session = f"dense {path}"
        found = measure(
            turns,
            self.setting.rounds,
            "cpu",
            progress=lambda: self.progress(f"{self.setting.name}: turns with {session}"),
        )
        where = {**environment("cpu"), "session": session}
        rate = self.buffer / median(found.seconds[MEMORY])
        rows = [
            {**self._row(one, rate), "error": found.failed.get(one.name), **where}
            for one in present
        ]
        rows += [{**self._empty(name), "error": why, **where} for name, why in failed.items()]
        return rows

    def _built(self, wanted: list[tuple[str, str]]) -> tuple[list[Contender], dict[str, str]]:
        made, failed = [], {}
        for kind, path in wanted:
            self.progress(f"building {kind} {path}")
            one, reason = attempt(lambda kind=kind, path=path: self._contender(kind, path), "cpu")
            gc.collect()
            if reason:
                failed[f"{kind} {path}"] = reason
            else:
                made.append(one)
        return made, failed

    def _contender(self, kind: str, path: str) -> Contender:
        setting = self.setting
        if kind == "llama.cpp":
            clock, parameters = llama_clock(setting, path)
            return Contender(kind=kind, path=path, clock=clock, parameters=parameters)
        model = hollow(getattr(setting, kind))
        read = numbers(model, setting.context, setting.batch)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        check_memory(parameters * SIZES[setting.weights] + read["cache"] * SIZES[setting.cache])
        way = PATHS[path](model, setting)
        return Contender(
            kind=kind,
            path=path,
            clock=way.clock,
            parameters=parameters,
            read=read,
            agreement=agreement(way, model) if path == "native" else None,
            precision=way.precision,
        )

    def _row(self, one: Contender, rate: float) -> Row:
        setting, row = self.setting, self._empty(one.name)
        readings = one.readings[-setting.rounds :]
        if len(readings) < setting.rounds:
            return row
        times = [self._seconds(reading) for reading in readings]
        low, middle, high = quartiles(times)
        row |= {
            "ms": 1e3 * middle,
            "lower_quartile_ms": 1e3 * low,
            "upper_quartile_ms": 1e3 * high,
            "bandwidth_gb_s": rate / 1e9,
            "parameters": one.parameters,
            "agreement": one.agreement,
            **one.precision,
        }
        if one.read is not None:
            floor = self._bytes(one) / rate
            row |= {"bytes": self._bytes(one), "floor_ms": 1e3 * floor}
            row["time_over_floor"] = middle / floor
        parts = dict.fromkeys(name for reading in readings for name in reading)
        for part in parts:
            if part != TOTAL:
                seconds = median(reading.get(part, 0.0) for reading in readings)
                row[f"ms_{part}"] = 1e3 * seconds * (1.0 if part in ONCE else self._times)
        return row

    def _seconds(self, reading: dict[str, float]) -> float:
        """Seconds of the whole model, or of one feed-forward, from one reading."""
        if self.setting.part == "feedforward":
            return self._times * sum(reading.get(part, 0.0) for part in FEEDFORWARD)
        once = sum(reading.get(part, 0.0) for part in ONCE)
        return once + self._times * (reading[TOTAL] - once)

    @property
    def _times(self) -> float:
        alone = self.setting.part == "feedforward"
        return 1 / self.setting.timed if alone else self.setting.times

    def _bytes(self, one: Contender) -> int:
        read = one.read
        assert read is not None
        if self.setting.part == "feedforward":
            read = {"layers": read["feedforward"], "cache": 0, "output": 0}
        return step_bytes(read, times=self._times, **one.precision)

    def _empty(self, name: str) -> Row:
        """A row without measurements; every row has every key."""
        setting = self.setting
        kind, _, path = name.partition(" ")
        return {
            "bench": "decode",
            "case": name,
            "kind": kind,
            "path": path,
            "model": setting.name,
            "part": setting.part,
            "weights": setting.weights,
            "cache": setting.cache,
            "output": setting.output,
            "layers": setting.layers,
            "layers_timed": setting.timed,
            "scaled": setting.timed < setting.layers,
            "context": setting.context,
            "batch": setting.batch,
            "rounds": setting.rounds,
            "ms": None,
            "lower_quartile_ms": None,
            "upper_quartile_ms": None,
            "bytes": None,  # of a step; all rows of the batch together
            "bandwidth_gb_s": None,
            "floor_ms": None,
            "time_over_floor": None,
            "parameters": None,
            "agreement": None,
            "ratio": None,
            "counts": False,
            "error": None,
        }


def _marked(rows: list[Row]) -> list[Row]:
    """Set `ratio`, the speed over the dense model of the session, and `counts`."""
    sessions: dict[str, float] = {}
    for session in dict.fromkeys(row["session"] for row in rows):
        own = [row for row in rows if row["session"] == session and row["ms"]]
        dense = next((row["ms"] for row in own if row["kind"] == "dense"), None)
        if dense is None:
            continue
        for row in own:
            row["ratio"] = dense / row["ms"]
        sparse = [row["ratio"] for row in own if row["kind"] == "sparse"]
        if sparse:
            sessions[session] = max(sparse)
    better = min(sessions, key=sessions.__getitem__) if sessions else None
    for row in rows:
        row["counts"] = row["session"] == better and row["ms"] is not None
    return rows
