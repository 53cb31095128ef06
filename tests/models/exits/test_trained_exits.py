"""Exits of models that were really trained: the conformal promise, and layers that are saved."""

import pytest
import torch
from model_parts import encoder

from weft.models import EarlyExit
from weft.models.exits.policy import Confidence, Conformal, Patience
from weft.objectives import Batch, EarlyExits

LAYERS, CLASSES = 4, 3


def documents(rows, seed, length=16):
    """Which of three tokens occurs most often; other tokens, up to all but one, are noise."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(11, (rows, length), generator=draw)
    counts = torch.stack([(x == token).sum(1) for token in range(CLASSES)], dim=1)
    return Batch(x=x, y=counts.argmax(1))


def trained(steps, seed=0):
    torch.manual_seed(seed)
    shape = encoder(order="sf" * LAYERS, mixer="full", frame={"heads": 3})
    model = EarlyExit(trunk=shape, classes=CLASSES).build().train()
    objective, optimiser = EarlyExits(), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        loss = objective.loss(model, documents(64, seed=step), torch.Generator())
        (loss.total / loss.count).backward()
        optimiser.step()
        optimiser.zero_grad()
    return model.eval()


def leaves_at(policy, history):
    found = torch.full((len(history),), LAYERS)
    for k in range(LAYERS - 1, 0, -1):
        found[policy.leaves(history[:, :k])] = k
    return found


def outcome(policy, history):
    """The share of rows that are answered as by all layers, and the layers run."""
    layers = leaves_at(policy, history)
    answers = history.argmax(-1)
    same = answers.gather(1, layers[:, None] - 1)[:, 0] == answers[:, -1]
    return same.double().mean().item(), layers.double().mean().item()


@torch.no_grad()
def check(model, rows, epsilons, splits):
    """Over random splits of held-out rows into calibration and test, 1 − ε of them agree."""
    held = documents(rows, seed=10**6)
    history = model.history(held.x)
    for variant in ("shared", "independent"):
        for epsilon in epsilons:
            found = []
            for split in range(splits):
                order = torch.randperm(rows, generator=torch.Generator().manual_seed(split))
                known, fresh = order[: rows // 2], order[rows // 2 :]
                rule = Conformal(epsilon, variant=variant).fitted(history[known], held.y[known])
                found.append(outcome(rule, history[fresh]))
            agreement, layers = torch.tensor(found).mean(0).tolist()
            assert agreement >= 1 - epsilon - 3 * (epsilon / rows) ** 0.5, (variant, epsilon)
            assert layers < LAYERS, "no one left, so nothing was promised"
    return held, history


def test_a_little_training_and_the_promise_holds():
    check(trained(steps=40), rows=600, epsilons=(0.1, 0.3), splits=6)


@pytest.mark.long
def test_a_trained_model_saves_layers_and_keeps_its_answers():
    model = trained(steps=1500)
    held, history = check(model, rows=4000, epsilons=(0.02, 0.05, 0.1), splits=20)
    full = (history[:, -1].argmax(-1) == held.y).double().mean()
    assert full > 0.85
    for policy in (Confidence(0.95).fitted(history, held.y), Patience(2)):
        agreement, layers = outcome(policy, history)
        assert agreement > 0.9
        assert layers < LAYERS
        with torch.no_grad():
            left = model.leave(held.x, policy)
        assert left.layers.double().mean().item() == pytest.approx(layers, abs=0.01)
