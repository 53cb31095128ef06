"""The training loop.

    for each stage:  build the model, take over the weights of the stage before
        for each step:   forward, backward and update (weft.training.learner)
            now and then:    a row of metrics; a validation, and the best model kept; a checkpoint

A run can be stopped at any moment, by a signal or by a kill, and goes on where its last checkpoint
was. On a CPU it ends in the same weights, bit by bit, as if nothing had happened: batches are a
function of the step, and weights, moments, buffers, random states and half-filled rows of metrics
are in the checkpoint.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from weft.metrics import sign as sign_of
from weft.scale.lost import noticed
from weft.scale.team import Alone, team_of
from weft.training.checkpoints import checkpoint, parts
from weft.training.checkpoints.checkpoint import Checkpoint
from weft.training.checkpoints.run_folder import OtherRank, RunFolder
from weft.training.checkpoints.run_state import RunState
from weft.training.checkpoints.tensors import whole_model
from weft.training.checkpoints.transfer import transfer
from weft.training.cuda_graphs import RECORDED_WIDTHS
from weft.training.data.prefetch import Prefetch
from weft.training.data.seeds import derive
from weft.training.evaluate import score
from weft.training.interrupt import Interrupt
from weft.training.learner import Learner
from weft.training.progress import Progress, Several
from weft.training.run import Outcome, Run
from weft.training.speed import Memory, Stopwatch
from weft.training.trackers import Tracking


def train(
    run: Run,
    folder: str | Path,
    progress: Progress | None = None,
    *,
    waited: float = 0.0,
    reserve: float = 0.0,
) -> Outcome:
    """Train a run in its folder: from the start, or on from where it was, or not if it is done.

    Of the run's minutes, `waited` seconds went by before this call (data, a probe), and `reserve`
    seconds are left for what follows (validation, scores).
    """
    with noticed():
        return _train(run, folder, progress, waited + reserve)


def _train(run: Run, folder: str | Path, progress: Progress | None, apart: float) -> Outcome:
    settings = run.filled_settings
    team = team_of(settings.mesh, settings.torch_device())
    for stage in run.stages:
        team.check(stage.settings.batch, stage.settings.accumulate)
    record = RunFolder(folder) if team.main else OtherRank(folder)
    device = team.place(settings.torch_device())
    listener = (progress or Progress()) if team.main else Progress()
    named = settings.all_trackers if team.main else ()
    if named:
        listener = Several(listener, *(Tracking(name, record.folder) for name in named))
    with record.claimed():
        record.check(run)
        if (outcome := team.told(record.outcome())) is not None:
            record.remove_checkpoints()  # left behind if the process was killed while it finished
            return outcome
        random = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        with random, Interrupt() as interrupt:
            trainer = Trainer(run, record, listener, device, interrupt, team)
            trainer.apart = apart
            try:
                return trainer.train()
            finally:
                trainer.feed.close()


class Trainer:
    """The state and the loop of a run in progress."""

    def __init__(
        self,
        run: Run,
        record: RunFolder,
        progress: Progress,
        device: torch.device,
        interrupt: Interrupt,
        team: Alone | None = None,
    ) -> None:
        self.run, self.record, self.progress, self.device = run, record, progress, device
        self.interrupt, self.team = interrupt, team or Alone()
        self.apart = 0.0  # seconds of the run's minutes that are not for its updates
        self.asked: str | None = None  # to stop, as all processes know
        found = self.found()
        self.at = RunState() if found is None else RunState(**found.values["place"])
        self.build()
        if found is not None:
            self.restore(found)
        self.saved_step, self.saved_at = self.at.step, time.perf_counter()
        self.memory = Memory(device, self.at.peak_bytes)
        self.clock = time.perf_counter()

    def train(self) -> Outcome:
        """Run the stages that are left."""
        self.progress.start(self.run, self.at.step)
        if self.at.pending:
            self.evaluate()
        while True:
            over = self.complete()
            while not (over or self.requested):
                self.step()
                over = self.look()
                self.progress.step(self.at.step)
            if self.requested:
                self.save()
                return self.end("interrupted", self.requested)
            minutes = self.run.filled_settings.minutes
            spent = minutes is not None and self.at.seconds + self.apart >= 60 * minutes
            if spent or self.at.stage + 1 == len(self.run.stages):
                return self.end("done")
            self.next_stage()

    def step(self) -> None:
        """One update."""
        batch = self.feed.batch(self.at.number)
        self.learner.step(batch, self.at.number, self.at.step)
        self.at.step += 1
        tokens = sum(part.tokens for part in batch.parts(self.stage.settings.accumulate))
        tokens *= self.team.data_ranks
        self.at.tokens += tokens
        self.stopwatch.count(tokens)

    def look(self) -> bool:
        """Do what is due after a step; whether the stage ends with it."""
        settings, number = self.stage.settings, self.at.number
        late = self.out_of_time()
        due = (time.perf_counter() - self.saved_at) / 60 >= settings.save_minutes
        late, due = self.agreed(late, due)
        last = self.complete() or late
        logging = last or number % settings.log_every == 0
        evaluating = last or number % settings.evaluation_interval == 0
        saving = number % settings.save_every == 0 or due
        if self.device.type == "cuda" and not (logging or evaluating or saving):
            return False  # nothing here is worth waiting for the device
        self.stopwatch.lap()
        self.check()
        if logging:
            lr = float(self.learner.optimiser.param_groups[0]["lr"])
            self.write("train", {**self.learner.averages(), "lr": lr})
        if evaluating and self.stage.valid is not None:
            self.at.pending = True
            self.evaluate()
        if saving:
            self.save()
        self.stopwatch.go()
        return last or self.at.reached

    def check(self) -> None:
        """Stop with a diagnosis if a loss or a gradient was not finite."""
        self.learner.check(self.feed.made, self.at.began)

    def evaluate(self) -> None:
        """Score the validation split; keep the model if it is the best of the stage so far."""
        stage, at = self.stage, self.at
        assert stage.valid is not None
        found = score(
            self.learner.model,
            stage.valid,
            stage.objective,
            precision=stage.settings.precision,
            seed=self.run.filled_settings.seed,
            stop=lambda: not self.team.is_team and self.requested is not None,
            team=self.team,
            loss_of=self.learner.loss_of if self.team.is_team else None,
        )
        if found is None:
            return  # interrupted: it stays pending
        at.pending, row = False, found.row()
        self.write("valid", {**row, "metric": found.metric})
        at.score, at.loss = row["score"], row["loss"]
        if at.score is None:
            return
        sign = sign_of(found.metric)
        if at.best is None or sign * at.score > sign * at.best:
            at.best, at.best_step = at.score, at.step
            self.keep(self.record.best)
        at.reached = stage.until is not None and sign * at.score >= sign * stage.until

    def keep(self, folder: Path) -> None:
        """Save the model as `folder`, whole."""
        model = whole_model(self.learner.model, self.team)
        if self.team.main:
            checkpoint.save_best(model, folder)
        self.team.told(None)

    @property
    def requested(self) -> str | None:
        """What asked to stop: a signal to this process, or on a team what all know of."""
        return self.asked if self.team.is_team else self.interrupt.requested

    def agreed(self, late: bool, due: bool) -> tuple[bool, bool]:
        """Whether the time is up and a checkpoint is due, for all processes alike.

        On GPUs they ask each other where the host waits anyway.
        """
        if not self.team.is_team:
            return late, due
        number, every = self.at.number, self.stage.settings.log_every
        if self.device.type == "cuda" and number % every and not self.complete():
            return False, False
        late, due, asked = self.team.agree(late, due, self.interrupt.requested is not None)
        if asked:
            self.asked = self.interrupt.requested or "another process"
        return late, due

    def found(self) -> Checkpoint | None:
        """The checkpoint to go on from; of a team, where all find its parts."""
        found = self.record.load()
        if not self.team.is_team:
            return found
        if found is not None and found.parts is None:
            found.parts = parts.converted(self.record.checkpoints, found)
            found.tensors = {}
        return self.team.told(found)

    def write(self, kind: str, values: dict[str, Any]) -> None:
        """Add a row of metrics and tell the listener."""
        self.tick()
        at = self.at
        place = {"step": at.step, "phase": at.stage, "seconds": at.seconds, "tokens": at.tokens}
        row = {"kind": kind, **place, **values}
        self.record.write(row)
        self.progress.row(row)

    def tick(self) -> None:
        """Add the time since the last look at the clock."""
        now = time.perf_counter()
        self.at.seconds += now - self.clock
        self.clock = now

    def complete(self) -> bool:
        """Whether this stage has made its steps or reached its score."""
        return self.at.reached or self.at.number >= self.stage.settings.steps

    def out_of_time(self) -> bool:
        """Whether the minutes of the run, or of this stage, are used up."""
        self.tick()
        at = self.at
        limits = [
            (at.seconds + self.apart, self.run.filled_settings.minutes),
            (at.seconds - at.began_seconds, self.stage.settings.minutes),
        ]
        return any(limit is not None and spent >= 60 * limit for spent, limit in limits)

    def build(self) -> None:
        """The present stage as it is before its first step."""
        self.stage = self.run.stages[self.at.stage]
        seed = derive(self.run.filled_settings.seed, "stage", self.at.stage)
        self.learner = Learner(self.stage, seed, self.device, self.team)
        settings = self.stage.settings
        ragged = settings.accumulate > 1 or settings.graph
        widths = RECORDED_WIDTHS if settings.graph else None
        ahead = self.run.filled_settings.prefetch
        own = partial(self.team.rows, parts=settings.accumulate) if self.team.is_team else None
        self.feed = Prefetch(self.stage.source, self.device, ahead, ragged, widths, own)
        self.stopwatch = Stopwatch(self.device)

    def next_stage(self) -> None:
        """Go on to the next stage with the weights of this one."""
        model, objective = self.learner.model, self.stage.objective
        self.feed.close()
        self.at = self.at.next_stage()
        self.build()
        same = type(objective) is type(self.stage.objective)
        self.progress.stage(self.at.stage, str(transfer(model, self.learner.model, head=same)))

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.saved_step == self.at.step:
            return
        self.check()
        self.tick()
        self.at.peak_bytes = self.memory.peak
        values = {
            "place": dataclasses.asdict(self.at),
            "scaler": self.learner.scaler.state_dict(),
            "laps": self.stopwatch.laps,
        }
        state = Checkpoint(self.at.step, self.learner.tensors(), values)
        if self.team.is_team:
            parts.save(self.record.checkpoints, state, self.team)
        else:
            checkpoint.save(self.record.checkpoints, state)
        self.saved_step, self.saved_at = self.at.step, time.perf_counter()

    def restore(self, found: Checkpoint) -> None:
        """Put back everything that `save` wrote."""
        for reason in found.unreadable:
            self.progress.note(f"a checkpoint could not be read, so an older one is used: {reason}")
        self.learner.restore(found)
        self.stopwatch.laps = [tuple(lap) for lap in found.values["laps"]]

    def end(self, status: Literal["done", "interrupted"], reason: str | None = None) -> Outcome:
        """The outcome; a run that is done leaves its last model and done.json."""
        self.tick()
        at, watch, model = self.at, self.stopwatch, self.learner.model
        outcome = Outcome(
            status=status, reason=reason, steps=at.step, phase=at.stage, seconds=at.seconds,
            tokens=at.tokens, score=at.score, best_score=at.best, best_step=at.best_step,
            loss=at.loss, steps_per_second=watch.steps_per_second,
            tokens_per_second=watch.tokens_per_second, peak_bytes=self.memory.peak,
            parameters=sum(p.numel() for p in model.parameters()),
            model="last" if at.best is None else self.run.filled_settings.keep,
        )  # fmt: skip
        if status == "done":
            self.keep(self.record.last)
            self.record.finish(outcome)
        self.progress.end(outcome)
        return outcome
