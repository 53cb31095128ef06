"""What the ranks of a world check; each function raises AssertionError with what differs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, distribute_tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from tiny_runs import CLASSES, VOCAB, examples

from weft.arena.analysis.activations import activation_bytes
from weft.arena.data.examples import Examples, TokenRows
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Decoder, Encoder, Stack
from weft.objectives import CausalLM, Classify, Head
from weft.scale import Mesh, data, heads
from weft.scale.annotations import annotate
from weft.scale.costs import plan
from weft.scale.groups import Group
from weft.scale.team import Team, local
from weft.training import Ordered, Run, Shuffled, Stage, TrainingSettings, train
from weft.training.checkpoints.tensors import named_tensors, whole_model
from weft.training.learner import Learner

CPU = torch.device("cpu")
LENGTH = 16
# Settings under which nothing is drawn at random, and sizes that meshes divide.
FEEDS = {
    "dense": "dense",
    "glu": 'dense(activation="swiglu", hidden=8)',
    "chunked": "chunked(tokens=5)",
    "gate": "gate",
    "sparse": "sparse(block=4, hidden=32, temperature=0.0, hard=0.0)",
    "with_sru": "with_sru(units=4)",
    "product_key": "product_key(keys=4, heads=2, top=2, key_dim=8)",
    "moe": "moe(experts=4, top=2, noisy=false, load=0.0, balance=0.1)",
    "switch": "switch(experts=4, jitter=0.0, capacity=0.75, balance=0.5, z_loss=0.1)",
    "gshard": 'gshard(experts=4, group=24, capacity=0.5, second="always", balance=0.5)',
}


def mesh_of(text: str) -> Mesh:
    """ "dp_shard=2,tp=2"."""
    return Mesh(**{k: int(v) for k, v in (part.split("=") for part in text.split(","))})


@cache
def team_of(mesh: str) -> Team:
    """One for all checks on a mesh: each group of gloo keeps threads as long as its process."""
    return Team(mesh_of(mesh), CPU)


def stage(
    mixer="full",
    feedforward="dense",
    *,
    causal: bool = False,
    length: int = LENGTH,
    ragged: bool = True,
    **changes,
) -> Stage:
    frame = Frame(dim=8, heads=4, length=length, dropout=0.0)
    stack = Stack(frame=frame, order="sf", mixer=mixer, feedforward=feedforward)
    embedding = Embedding(vocab=VOCAB, positions="learned")
    trunk = (Decoder if causal else Encoder)(embedding=embedding, stack=stack)
    objective = CausalLM() if causal else Classify()
    few = {"steps": 4, "batch": 8, "lr": 1e-2, "eps": 1e-6, "precision": "float64"}
    settings = TrainingSettings(**{**few, "device": "cpu", "clip": 0.5, **changes})
    whole = TokenRows.of([np.zeros(length, np.uint8)] * 24)
    rows = examples(rows=24, length=length) if ragged else Examples(whole, length)
    return Stage(
        model=objective.build(trunk, Head(classes=CLASSES)),
        objective=objective,
        source=Shuffled(rows, settings.batch, seed=1),
        settings=settings,
    )


def trained(one: Stage, team: Team | None, steps: int = 3) -> dict[str, torch.Tensor]:
    """Whole weights after some updates."""
    learner = Learner(one, 3, CPU, team)
    parts = one.settings.accumulate
    for number in range(steps):
        batch = one.source.batch(number)
        batch = batch.by_length() if parts > 1 else batch
        learner.step(batch if team is None else team.rows(batch, parts), number, number)
    model = learner.model if team is None else whole_model(learner.model, team)
    learner.averages()
    return {name: tensor.clone() for name, tensor in named_tensors(model).items()}


def same_weights(
    one: Stage, mesh: str, most: float = 1e-10, *, spread_as: Stage | None = None
) -> None:
    """A few updates on the mesh end in the weights of one process."""
    alone = trained(one, None)
    spread = trained(spread_as or one, team_of(mesh))
    if dist.get_rank():
        return
    assert alone.keys() == spread.keys()
    errors = {name: (alone[name] - spread[name]).abs().max().item() for name in alone}
    worst = max(errors, key=lambda name: errors[name])
    assert errors[worst] <= most, f"{worst} differs by {errors[worst]:.1e}"


def mixer(mesh: str, name: str, direction: str = "both", **changes) -> None:
    same_weights(stage(name, causal=direction == "causal", **changes), mesh)


def feedforward(mesh: str, name: str) -> None:
    same_weights(stage(feedforward=FEEDS[name]), mesh)


def rounding(mesh: str, precision: str, name: str = "full", feed: str = "dense") -> None:
    """In less precision a mesh strays from float64 hardly farther than one process does."""
    exact = trained(stage(name, FEEDS[feed]), None)
    less = stage(name, FEEDS[feed], precision=precision)
    alone, spread = trained(less, None), trained(less, team_of(mesh))

    def far(found: dict[str, torch.Tensor]) -> float:
        return max((found[each].double() - exact[each]).abs().max().item() for each in exact)

    assert far(alone) > 0.0
    assert far(spread) <= 3 * far(alone), (far(spread), far(alone))


def compiled(mesh: str, name: str, direction: str = "both") -> None:
    """Layers that torch.compile has rewritten, on a mesh, against plain ones on one device."""
    causal = direction == "causal"
    with pytest.MonkeyPatch.context() as own:
        # Ranks that write the same library at once may load a part of it.
        folder = f"{tempfile.gettempdir()}/weft-inductor-{dist.get_rank()}"
        own.setenv("TORCHINDUCTOR_CACHE_DIR", folder)
        fast = stage(name, causal=causal, compile=True)
        same_weights(stage(name, causal=causal), mesh, spread_as=fast)


def parts(mesh: str, name: str = "dense") -> None:
    same_weights(stage(feedforward=FEEDS[name], accumulate=2), mesh)


def registry(mesh: str, first: str, every: str) -> None:
    """Every mixer of the registry, and both directions where it has both."""
    for name in list(MIXERS)[int(first) :: int(every)]:
        traits = MIXERS[name]().traits
        if mesh_of(mesh).tp > 1 and traits.tensor != "heads":
            continue
        for causal in (False, True):
            if traits.causal if causal else traits.bidirectional:
                try:
                    same_weights(stage(name, causal=causal), mesh)
                except AssertionError as error:
                    raise AssertionError(f"{name}, causal={causal}: {error}") from error


def refuses(mesh: str, what: str, name: str, reason: str) -> None:
    """A mesh that the model does not fit is refused with the way out."""
    one = stage(name) if what == "mixer" else stage(feedforward=FEEDS.get(name, name))
    with pytest.raises(WeftError, match=reason):
        Learner(one, 3, CPU, team_of(mesh))


def twin(broken: str, kind: str, mesh: str, name: str = "dense") -> None:
    """The comparison fails where one exchange is left out."""
    with pytest.MonkeyPatch.context() as own:
        BROKEN[broken](own)
        try:
            {"mixer": mixer, "feedforward": feedforward, "parts": parts}[kind](mesh, name)
        except AssertionError:
            return
    if dist.get_rank() == 0:
        raise AssertionError(f"the comparison does not notice that {broken} is left out")


def _unsummed(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


BROKEN = {
    "the sum of gradients (DDP)": lambda own: own.setattr(data, "_summed", _unsummed),
    "the sum of gradients (FSDP2)": lambda own: own.setattr(data, "reduce", lambda *_: None),
    "the sum over shares": lambda own: own.setattr(heads, "leave", lambda y, _: y),
    "the sum of the input's gradients": lambda own: own.setattr(heads, "enter", lambda x, _: x),
    "the number of items": lambda own: own.setattr(Team, "total", lambda _, x: x),
    "statistics of the batch": lambda own: own.setattr(Group, "sum", lambda _, x: x),
    "what is ahead in the queue": lambda own: own.setattr(
        Group, "gather", lambda self, x: torch.zeros(self.ranks, *x.shape, dtype=x.dtype)
    ),
}


def memory(mesh: str) -> None:
    """Bytes of parameters and moments of a rank are those of the plan, within 10 %."""
    one = stage(feedforward="gshard(experts=4)" if "ep" in mesh else "dense")
    learner = Learner(one, 3, CPU, team := team_of(mesh))
    batch = one.source.batch(0)
    learner.step(team.rows(batch, 1), 0, 0)
    held = list(learner.model.parameters())
    held += [t for state in learner.optimiser.state.values() for t in state.values()]
    found = sum(local([t])[0].numel() * t.element_size() for t in held)
    wanted = plan(one.model, mesh_of(mesh), rows=8, length=LENGTH, precision="float64")
    whole = plan(one.model, Mesh(), rows=8, length=LENGTH, precision="float64")
    kept = wanted.parameter_bytes + wanted.moment_bytes
    assert abs(found - kept) <= 0.1 * kept, (found, kept)
    assert kept < 0.8 * (whole.parameter_bytes + whole.moment_bytes)


def activations(mesh: str, name: str) -> None:
    """What backward keeps on the rank that keeps most falls as the plan says, within 10 %."""
    few = {"length": 256, "ragged": False, "precision": "float32"}
    one, whole = stage(name, causal=True, **few), Mesh()
    found = {
        each: kept(one, team_of(mesh) if each.several else None) for each in (whole, mesh_of(mesh))
    }
    wanted = {}
    for each in found:
        own = activation_bytes(one.model, 256, 8 // each.readers, tp=each.tp, cp=each.cp)
        planned = plan(one.model, each, rows=8, length=256, activations=own)
        assert planned.activation_bytes is not None
        wanted[each] = planned.activation_bytes
    if dist.get_rank():
        return
    for each, bytes_planned in wanted.items():
        close = abs(found[each] - bytes_planned) <= 0.1 * bytes_planned
        # A CPU's kernel for windows keeps more on one device than fused kernels do.
        assert close or (each == whole and name != "full"), (each, found, wanted)
    assert found[mesh_of(mesh)] < 0.75 * found[whole]


def kept(one: Stage, team: Team | None) -> int:
    """Bytes of all storages that an update's forward keeps for backward, parameters left out."""
    learner, held = Learner(one, 3, CPU, team), {}
    weights = {t.untyped_storage()._cdata for t in local(list(learner.model.parameters()))}

    def pack(x: torch.Tensor) -> torch.Tensor:
        held[x.untyped_storage()._cdata] = x  # held, so that no number comes twice
        return x

    batch = one.source.batch(0)
    batch = batch if team is None else team.rows(batch, 1)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss, _ = learner.loss_of(batch, learner.generator)
    loss.total.backward()  # after it the storages of units that FSDP2 gathered have no bytes
    own = sum(x.untyped_storage().nbytes() for at, x in held.items() if at not in weights)
    most = torch.tensor(own)
    if team is not None:
        dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def early(mesh: str) -> None:
    """Ranks stop together where validation reaches a score, and write what one process writes."""
    box = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    if dist.get_rank() == 0:
        with pytest.MonkeyPatch.context() as own:
            own.setenv("WORLD_SIZE", "1")
            every = rows_of(Path(box[0]) / "all", None, None)
            scores = [row["score"] for row in every if row["kind"] == "valid"]
            box.append(sum(scores[:2]) / 2)
            assert scores[0] > box[1] > scores[1]  # bits: fewer are better
            alone = rows_of(Path(box[0]) / "alone", None, box[1])
    else:
        box.append(None)
    dist.broadcast_object_list(box, src=0)
    spread = rows_of(Path(str(box[0])) / "spread", mesh_of(mesh), box[1])
    if dist.get_rank():
        return
    shutil.rmtree(str(box[0]))
    assert [(row["kind"], row["step"]) for row in spread] == [(r["kind"], r["step"]) for r in alone]
    assert 0 < len(spread) < len(every)
    for ours, theirs in zip(spread, alone, strict=True):
        for name in {"loss", "score"} & theirs.keys():
            assert abs(ours[name] - theirs[name]) <= 1e-10


def rows_of(folder: Path, mesh: Mesh | None, until: float | None) -> list[dict[str, Any]]:
    """The rows of metrics of a run."""
    one = stage(causal=True, steps=12, evaluate_every=3, log_every=1, mesh=mesh)
    held = Ordered(examples(rows=11, length=LENGTH), 4)
    train(Run(stages=(dataclasses.replace(one, valid=held, until=until),)), folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def annotated(mesh: str) -> None:
    """A model whose parameters are split by rules computes what it did."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    x, tp = torch.randn(3, 8), team_of(mesh).mesh["tp"]
    wanted = model(x)
    rules = {"0.*": ("tp", 0), "2.weight": ("tp", 1)}
    annotate(model, rules, tp)
    assert local([model[0].weight])[0].shape == (8, 8)
    shown = distribute_tensor(x, tp, [Replicate()])
    found = model(shown).full_tensor()
    assert (found - wanted).abs().max() <= 1e-6
    for broken, reason in (
        ({"3.*": ("tp", 0)}, "no parameter is named '3"),
        ({"0.*": ("tq", 0)}, "no axis 'tq'; known: tp"),
        ({"0.weight": ("tp", 2)}, "has no axis 2"),
    ):
        with pytest.raises(WeftError, match=reason):
            annotate(model, broken, tp)


assert set(FEEDS) >= set(FEEDFORWARDS), set(FEEDFORWARDS) - set(FEEDS)
