"""Registers in front of tokens: one long tensor, the same as two joined."""

import pytest
import torch

from weft.layers.embedding import Embedding

KINDS = {
    "table": {"vocab": 9},
    "bumps": {"vocab": 9, "rbf_levels": 4},
    "factor": {"vocab": 9, "factor": 3},
    "clusters": {"vocab": 9, "cutoffs": (4,)},
    "vectors": {"channels": 5},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("positions", ["none", "sinusoidal", "learned"])
@pytest.mark.parametrize("padded", ["no", "aligned", "inside"])
def test_registers_stand_in_front_without_positions(kind, positions, padded):
    torch.manual_seed(0)
    module = Embedding(**KINDS[kind], positions=positions, registers=2).build(8, 6).double()
    x = torch.randint(0, 9, (3, 6)) if "vocab" in KINDS[kind] else torch.randn(3, 6, 5).double()
    valid = None if padded == "no" else torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    if padded == "inside":
        valid = valid.flip(1)
    given = {"valid": valid, "aligned": padded == "aligned"}
    tokens = module(x, valid=valid)  # positions counted from `valid`
    both = module.with_registers(x, **given)
    real = torch.ones(3, 6, dtype=torch.bool) if valid is None else valid
    torch.testing.assert_close(both[:, 2:][real], tokens[real])
    torch.testing.assert_close(both[:, :2], module.registers.expand(3, -1, -1))
    both[:, 1:3].sum().backward()
    assert module.registers.grad[0].abs().max() == 0
    torch.testing.assert_close(module.registers.grad[1], torch.full((8,), 3.0).double())


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_positions_count_real_tokens_wherever_padding_stands(positions):
    module = Embedding(vocab=9, positions=positions).build(8, 6).double()
    x, start = torch.randint(0, 9, (1, 6)), 0 if positions == "learned" else 3
    valid = torch.tensor([[False, True, False, True, True, False]])
    alone = module(x[valid][None], start=start)
    torch.testing.assert_close(module(x, valid=valid, start=start)[valid][None], alone)
    first = torch.tensor([[True, True, True, False, False, False]])
    aligned = module(x, valid=first, start=start, aligned=True)
    torch.testing.assert_close(aligned[:, :3], module(x[:, :3], start=start))


def test_padding_may_be_longer_than_learned_positions():
    module = Embedding(vocab=9, positions="learned", registers=1).build(8, 4)
    x, valid = torch.randint(0, 9, (2, 7)), torch.arange(7) < torch.tensor([[4], [2]])
    aligned = module.with_registers(x, valid=valid, aligned=True)
    torch.testing.assert_close(aligned[:, 1:][valid], module(x, valid=valid)[valid])
