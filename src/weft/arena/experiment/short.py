"""A training in few words: a table or a task, a mechanism and a budget, without a settings file.

`weft compare --data`, `weft train --data` and `weft.fit` come through here.
"""

from __future__ import annotations

from typing import Any

from weft.arena.experiment.settings import Recipe, recipe, tables_of

MIXER = "sliding_window(window=33)"  # of a training that names none
BUCKETED = ("training.accumulate=4",)  # clients of like length share a part of a batch
ENDLESS = 100_000_000  # updates: time ends the training


def budget(steps: int | None, minutes: float | None, *, scheduled: bool = False) -> list[str]:
    """Updates and minutes as changes of settings; `scheduled`: a recipe has a schedule already."""
    found = [f"training.steps={steps}"] if steps else []
    if minutes:
        found.append(f"training.minutes={minutes}")
        if not steps and not scheduled:
            # Time ends the training, so no schedule can be laid over a number of steps.
            found += [f"training.steps={ENDLESS}", "training.schedule=constant"]
    return found


def short_recipe(changes: list[str], steps: int | None = None, **sections: Any) -> Recipe:
    """The usual settings with changes; a tenth of the updates is warm-up."""
    usual = {"training": {"warmup": (steps or 1000) // 10}, **sections}
    return recipe(usual, tables_of(changes))
