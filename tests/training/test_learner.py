"""One update: parts weigh by their items, penalties count, AdamW is the equation's."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tiny_runs import Drifting, examples, stage, trunk

from weft.objectives import Batch, CausalLM, Classify, Loss
from weft.training.learner import Learner

CPU = torch.device("cpu")


def learner(objective, accumulate=1, mixer="full", **changes) -> Learner:
    """In float64, with nothing random: two of them differ by rounding alone."""
    shape = trunk(dropout=0.0, mixer=mixer)
    fixed = {"precision": "float64", "clip": None, "accumulate": accumulate, "batch": 32}
    return Learner(stage(objective, shape=shape, **{**fixed, **changes}), 0, CPU)


def gradients(made: Learner, batch: Batch | None = None) -> dict[str, torch.Tensor]:
    """What one update would give the optimiser."""
    taken = {}

    def step():
        named = made.model.named_parameters()
        taken.update({name: p.grad.clone() for name, p in named if p.grad is not None})

    made.optimiser.step = step
    made.step(made.stage.source.batch(0) if batch is None else batch, 0, 0)
    return taken


def assert_close(one, two):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-11, atol=1e-13)


CASES = [(CausalLM(), "full"), (Classify(), "full"), (Classify(), Drifting(strength=0.0))]


@pytest.mark.parametrize(("objective", "mixer"), CASES, ids=["tokens", "rows", "penalty"])
def test_four_parts_of_8_are_one_of_32(objective, mixer):
    one = gradients(learner(objective, 1, mixer))
    four = gradients(learner(objective, 4, mixer))
    assert_close(one, four)


@pytest.mark.parametrize("objective", [CausalLM(), Classify()], ids=["tokens", "rows"])
def test_parts_without_their_padding_are_the_padded_batch(objective):
    made, reader = learner(objective, 4), Drifting(strength=0.0)
    ragged = made.stage.source.batch(0).by_length()
    widths = [part.x.shape[1] for part in ragged.parts(4)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == ragged.x.shape[1]
    padded = gradients(learner(objective, 1))
    assert_close(padded, gradients(made, ragged))
    short = replace(ragged, reach=tuple(max(1, n - 1) for n in ragged.reach))
    with pytest.raises(AssertionError):  # one token of every row left off
        assert_close(padded, gradients(made, short))
    one, four = (learner(Classify(), count, reader) for count in (1, 4))
    with pytest.raises(AssertionError):  # a mixer that reads padding
        assert_close(gradients(one), gradients(four, ragged))


def test_rows_by_length():
    batch = examples(rows=9).batch(np.arange(9))
    found = batch.by_length()
    sizes = batch.valid.sum(1)
    assert list(found.reach) == sorted(sizes.tolist())
    for row, n in enumerate(found.reach):
        before = [i for i in range(9) if torch.equal(batch.x[i], found.x[row])]
        assert [batch.y[i] for i in before] == [found.y[row]]
        assert int(found.valid[row].sum()) == n
    holes = Batch(x=torch.zeros(2, 5), valid=torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 0]]) > 0)
    assert holes.by_length().reach == (1, 3)
    whole = Batch(x=torch.zeros(2, 5))
    assert whole.by_length() is whole


@pytest.mark.parametrize(("n", "widths", "each"), [(2000, 16, 128), (100, 4, 32), (9, 16, 8)])
def test_rows_reach_up_to_few_widths(n, widths, each):
    sizes = torch.tensor([1, each, each + 1, n - 1, n])
    batch = Batch(x=torch.zeros(5, n), valid=torch.arange(n) < sizes[:, None])
    wanted = [min(n, -(-size // each) * each) for size in sizes.tolist()]
    assert batch.by_length(widths).reach == tuple(sorted(wanted))


def test_sums_are_those_of_one_update():
    """What an update knows of its loss and items does not go on into the next one."""
    made, seen = learner(Classify(), 4), []
    made.health.watch = lambda made, mean, norm: seen.append(mean.item())
    for number in range(3):
        batch = made.stage.source.batch(number)
        with torch.no_grad():
            loss = made.stage.objective.loss(made.model, batch, made.generator)
        made.step(batch, number, number)
        assert seen[-1] == pytest.approx((loss.total / loss.count).item(), rel=1e-9)
        assert made.items.item() == len(batch)


def test_the_gradient_is_that_of_the_mean():
    """Against autograd on the mean over all tokens, written out."""
    made = learner(CausalLM(), 4)
    found = gradients(made)
    loss = CausalLM().loss(made.model, made.stage.source.batch(0), torch.Generator())
    named = dict(made.model.named_parameters())
    truth = torch.autograd.grad(loss.total / loss.count, list(named.values()), allow_unused=True)
    assert_close({n: g for n, g in zip(named, truth, strict=True) if g is not None}, found)


def test_the_penalty_is_in_the_gradient():
    with_penalty = gradients(learner(Classify(), 4, Drifting(strength=0.0)))
    made = learner(Classify(), 4, Drifting(strength=0.0))
    for mixer in made.mixers:
        mixer.penalty = lambda: None
    without = gradients(made)
    name = "trunk.stack.sublayers.0.body.to_out.weight"
    extra = 2 * 0.01 * dict(made.model.named_parameters())[name]
    torch.testing.assert_close(with_penalty[name] - without[name], extra.detach())


@dataclass(frozen=True)
class MeanOfMeans(CausalLM):
    """What loops do that average the means of their parts."""

    name = "mean_of_means"

    def loss(self, model, batch, generator):
        loss = CausalLM.loss(self, model, batch, generator)
        return Loss(loss.total / loss.count, torch.ones_like(loss.count), loss.right)


def test_a_mean_of_means_is_found():
    with pytest.raises(AssertionError):
        assert_close(gradients(learner(MeanOfMeans(), 1)), gradients(learner(MeanOfMeans(), 4)))


def test_clipping_bounds_the_norm():
    free, cut = gradients(learner(CausalLM())), gradients(learner(CausalLM(), clip=0.01))

    def norm(found):
        return torch.stack([g.norm() for g in found.values()]).norm()

    assert norm(free) > 0.01
    torch.testing.assert_close(
        norm(cut), torch.tensor(0.01, dtype=torch.float64), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_updates_are_the_equation_of_adamw(accumulate):
    """Three updates against numpy, decay and warm-up included."""
    changes = {"lr": 0.05, "warmup": 2, "weight_decay": 0.3, "eps": 1e-6, "betas": (0.8, 0.9)}
    made = learner(CausalLM(), accumulate, **changes)
    named = dict(made.model.named_parameters())
    truth = {name: p.detach().numpy().copy() for name, p in named.items()}
    m = {name: np.zeros_like(value) for name, value in truth.items()}
    v = {name: np.zeros_like(value) for name, value in truth.items()}
    for t in (1, 2, 3):
        batch = made.stage.source.batch(t - 1)
        loss = CausalLM().loss(made.model, batch, torch.Generator())
        grads = torch.autograd.grad(loss.total / loss.count, list(named.values()))
        lr = 0.05 * min(1, t / 2)
        for name, gradient in zip(named, grads, strict=True):
            g = gradient.numpy()
            matrix = g.ndim >= 2 and "embedding" not in name
            m[name] = 0.8 * m[name] + 0.2 * g
            v[name] = 0.9 * v[name] + 0.1 * g * g
            truth[name] *= 1 - lr * (0.3 if matrix else 0.0)
            step = (m[name] / (1 - 0.8**t)) / (np.sqrt(v[name] / (1 - 0.9**t)) + 1e-6)
            truth[name] -= lr * step
        made.step(batch, t - 1, t - 1)
        for name, parameter in named.items():
            np.testing.assert_allclose(parameter.detach().numpy(), truth[name], rtol=1e-8)


def test_parts_hold_every_row_once():
    batch = stage(batch=11).source.batch(0)
    for count in (1, 2, 3, 11, 20):
        found = list(batch.parts(count))
        assert len(found) == min(count, 11)
        assert all(len(part) for part in found)
        assert torch.equal(torch.cat([part.x for part in found]), batch.x)


def test_advance_is_called_with_the_step_of_the_run():
    made = learner(Classify(), mixer=Drifting())
    heard = []
    made.mixers[0].advance = heard.append
    made.step(examples().batch(np.arange(4)), 0, 41)
    assert heard == [42]


def test_layers_are_skipped_by_the_step_of_the_run():
    """A run that goes on skips what it would have skipped; accumulated parts skip alike."""
    shape = trunk(dropout=0.0, order="sf" * 4, depth="layer_drop(rate=0.5)")
    heard = []
    for made in (0, 41):
        one = Learner(stage(Classify(), shape=shape, accumulate=2), 0, CPU)
        passage = one.drawing[0]
        one.step(examples().batch(np.arange(4)), 0, made)
        assert passage.kept == passage.config.kept(4, made, "encoder")
        heard.append(passage.kept)
    assert heard[0] != heard[1]
