"""What a running comparison or training looks like: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any

from weft.arena.grid.compare import Listener
from weft.arena.grid.grid import Cell
from weft.printable import printable
from weft.rows import Row
from weft.training.progress import Progress
from weft.training.run import Outcome, Run


def bar(screen: Any) -> Any:
    """Progress bars of rich, a note at the end of each."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        console=screen,
        transient=True,
    )


class Live(Listener):
    """A bar for the grid and one for each cell at work; a line for each cell that ended."""

    def __init__(self, screen: Any) -> None:
        self.screen, self.bars = screen, bar(screen)
        self.cells: dict[tuple[str, int, int], Any] = {}
        self.shares: dict[tuple[str, int, int], float] = {}
        self.latest: dict[tuple[str, int, int], Row] = {}
        self.whole, self.done, self.count = None, 0, 0

    def __enter__(self) -> Live:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def start(self, cells: Any, done: Any) -> None:
        self.done, self.count = len(done), len(cells)
        if done:
            self.screen.print(f"{len(done)} of {len(cells)} trainings are done already")
        self.whole = self.bars.add_task("all trainings", total=len(cells), note="")
        self._whole()

    def note(self, text: str) -> None:
        self.screen.print(printable(text), markup=False, soft_wrap=True)

    def cell(self, cell: Cell, seconds: float, latest: Row) -> None:
        if cell.key not in self.cells:
            self.cells[cell.key] = self.bars.add_task(cell.label, total=1.0, note="starting")
        share = _share(cell, latest)
        self.shares[cell.key] = share
        if latest:
            self.latest.setdefault(cell.key, {}).update(_noted(latest))
        note = _words(self.latest.get(cell.key, {})) or "starting"
        self.bars.update(self.cells[cell.key], completed=share, note=note)
        self._whole()

    def row(self, cell: Cell, row: Row) -> None:
        if cell.key in self.cells:
            self.bars.remove_task(self.cells.pop(cell.key))
        self.shares.pop(cell.key, None)
        self.done += 1
        ended = printable(f"{name_of(cell)}: {_ended(row)}")
        self.screen.print(ended, markup=False, soft_wrap=True)
        self._whole()

    def _whole(self) -> None:
        done = self.done + sum(self.shares.values())
        self.bars.update(self.whole, completed=done, note=f"{self.done} of {self.count}")


class Watch(Progress):
    """A bar for one training."""

    def __init__(self, screen: Any) -> None:
        self.screen, self.bars = screen, bar(screen)
        self.latest: Row = {}
        self.task: Any = None

    def start(self, run: Run, step: int) -> None:
        if step:
            self.screen.print(f"going on after step {step}")
        self.bars.start()
        self.task = self.bars.add_task("training", total=run.steps, completed=step, note="")

    def stage(self, number: int, note: str) -> None:
        self.screen.print(f"phase {number + 1}: {note}", markup=False, soft_wrap=True)

    def step(self, step: int) -> None:
        self.bars.update(self.task, completed=step)

    def row(self, row: Row) -> None:
        self.latest.update(_noted(row))
        self.bars.update(self.task, note=f"step {row['step']}, {_words(self.latest)}")
        if row["kind"] == "valid":
            text = f"step {row['step']}: {_words(self.latest)}"
            self.screen.print(text, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        self.screen.print(printable(text), markup=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        self.bars.stop()


def name_of(cell: Cell) -> str:
    """A cell in few words."""
    return f"{cell.label}, {cell.length:,} tokens, seed {cell.seed}"


def _share(cell: Cell, latest: Row) -> float:
    """How much of a cell is done: by steps or by minutes, whichever is further."""
    training = cell.experiment.training
    phases = cell.experiment.phase
    steps = sum(phase.steps or training.steps for phase in phases) if phases else training.steps
    shares = [latest.get("step", 0) / steps]
    if training.minutes:
        shares.append(latest.get("seconds", 0.0) / (60 * training.minutes))
    return min(1.0, max(shares))


def _noted(row: Row) -> Row:
    if row["kind"] == "train":
        return {"loss": row.get("loss")}
    return {str(row.get("metric") or "score"): row.get("score")}


def _words(latest: Row) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in latest.items() if value is not None)


def _ended(row: Row) -> str:
    if row["status"] != "done":
        return f"{row['status']}: {row['reason']}"
    speed, seconds = row["steps_per_second"], row["cell_seconds"] or row["train_seconds"]
    pace = f", {row['steps']:,} updates" + (f", {speed:.3g} steps/s" if speed else "")
    score = "no finite score" if row["test_score"] is None else f"{row['test_score']:.3f}"
    return f"{row['metric']} {score} in {seconds:.0f} s{pace}"
