"""One benchmark: every case at every length, gated, timed in turns, a row for each number.

A case that cannot be built, is wrong, raises or runs out of memory gets rows with the reason
instead of numbers; the others go on.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn

from weft.bench.cases import BASELINE, Case
from weft.bench.gate import GateResult, check
from weft.bench.memory import peak_bytes
from weft.bench.setting import Setting
from weft.bench.timing import attempt, forward, forward_backward, measure, quartiles
from weft.environment import environment
from weft.errors import WeftError
from weft.rows import Row

TIMED = {"forward": forward, "forward+backward": forward_backward}
MEMORY = "memory"


@dataclass(frozen=True)
class Ready:
    """A case that was built."""

    case: Case
    module: nn.Module
    inputs: tuple[Tensor, ...]


@dataclass(kw_only=True)
class Bench:
    """What is measured, and how often; `progress` is called before each step."""

    cases: Sequence[Case]
    setting: Setting
    lengths: Sequence[int]
    rounds: int = 10
    graph: bool = False  # CUDA: replay captured graphs where a case can be captured
    memory: bool = False
    progress: Callable[[str], None] = lambda text: None
    _passed: dict[object, GateResult] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.rounds < 1 or not self.lengths or min(self.lengths) < 1:
            raise WeftError(
                f"rounds and lengths are at least 1; got rounds={self.rounds}, "
                f"lengths={list(self.lengths)}"
            )
        if self.graph and self.setting.device != "cuda":
            raise WeftError("graphs are captured on CUDA only; leave graph out on a CPU")

    @property
    def steps(self) -> int:
        """How often `progress` will be called."""
        each = len(self.cases) * (1 + self.memory) + len(TIMED) * self.rounds
        return each * len(self.lengths)

    def run(self) -> Iterator[list[Row]]:
        """Rows, as they are measured."""
        where = environment(self.setting.device)
        for n in self.lengths:
            for rows in self._at(n):
                yield [{**row, **where} for row in rows]
            gc.collect()

    def _at(self, n: int) -> Iterator[list[Row]]:
        ready, failed, gates = self._prepare(n)
        if self.setting.device == "cuda":
            # Otherwise torch would compile for dynamic lengths, having seen those of the gate.
            torch.compiler.reset()
            torch.cuda.empty_cache()
        for name in TIMED:
            yield self._timed(name, n, ready, failed, gates)
        ready.clear()
        if self.memory:
            yield self._memory(n, failed, gates)

    def _prepare(self, n: int) -> tuple[list[Ready], dict[Case, str], dict[Case, GateResult]]:
        ready, failed, gates = [], {}, {}
        for case in self.cases:
            self.progress(f"{n:,} tokens: checking {case.name}")
            made, reason = attempt(lambda case=case: self._gated(case, n), self.setting.device)
            if reason is None:
                one, gates[case] = made
                reason = gates[case].reason
            if reason is None:
                ready.append(one)
            else:
                failed[case] = reason
        return ready, failed, gates

    def _gated(self, case: Case, n: int) -> tuple[Ready, GateResult]:
        module = case.build(self.setting, n)
        gate = check(case, module, self.setting, n, self._passed)
        return Ready(case, module, case.inputs(self.setting, n)), gate

    def _timed(
        self,
        name: str,
        n: int,
        ready: list[Ready],
        failed: dict[Case, str],
        gates: dict[Case, GateResult],
    ) -> list[Row]:
        calls = {one.case: TIMED[name](one.module, one.inputs) for one in ready}
        found = measure(
            calls,
            self.rounds,
            self.setting.device,
            graph=self.graph,
            progress=lambda: self.progress(f"{n:,} tokens: {name}"),
        )
        rows = []
        for case in self.cases:
            row = self._row(case, n, name, gates.get(case))
            if case in found.seconds:
                row |= _spread(found.seconds[case])
                row["rounds"] = len(found.seconds[case])
                row["graph"] = self.graph and case not in found.uncaptured
            row["graph_error"] = found.uncaptured.get(case)
            row["error"] = failed.get(case) or found.failed.get(case)
            rows.append(row)
        return _with_ratios(rows, "median_s")

    def _memory(self, n: int, failed: dict[Case, str], gates: dict[Case, GateResult]) -> list[Row]:
        rows = []
        for case in self.cases:
            self.progress(f"{n:,} tokens: memory of {case.name}")
            row = self._row(case, n, MEMORY, gates.get(case))
            row["error"] = failed.get(case)
            if case not in failed:
                row["peak_bytes"], row["error"] = attempt(
                    lambda case=case: peak_bytes(case, self.setting, n), self.setting.device
                )
            rows.append(row)
        return _with_ratios(rows, "peak_bytes")

    def _row(self, case: Case, n: int, name: str, gate: GateResult | None) -> Row:
        """A row without measurements; every row has every key."""
        return {
            "bench": "attention",
            "case": case.name,
            "kind": case.kind,
            "measure": name,
            "length": n,
            "median_s": None,
            "lower_quartile_s": None,
            "upper_quartile_s": None,
            "rounds": None if name == MEMORY else self.rounds,
            "peak_bytes": None,
            "ratio_to_dense": None,
            "error": None,
            "kernels": gate.kernels if gate else None,
            "gate_length": gate.length if gate else None,
            "gate_same_kernels": gate.same_kernels if gate else None,
            "gate_error_share": gate.error if gate else None,
            "graph": False,
            "graph_error": None,
            **asdict(self.setting),
            "dim": self.setting.dim,
        }


def _spread(seconds: list[float]) -> Row:
    low, middle, high = quartiles(seconds)
    return {"median_s": middle, "lower_quartile_s": low, "upper_quartile_s": high}


def _with_ratios(rows: list[Row], key: str) -> list[Row]:
    """Each number over dense attention's, layers against the layer and cores against the core."""
    dense = {row["kind"]: row[key] for row in rows if row["case"] == BASELINE}
    for row in rows:
        base = dense.get("core" if row["kind"] in ("core", "pattern") else "layer")
        if base and row[key] is not None:
            row["ratio_to_dense"] = row[key] / base
    return rows
