"""BRC and nBRC against brc_pytorch, and the two stable states they are named for."""

import pytest
import torch
from brc_pytorch.layers import BistableRecurrentCell, NeuromodulatedBistableRecurrentCell

from mixers.fixed_patterns import DIM, build, close, tokens
from weft.mixers import BRC


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (BRC(), BistableRecurrentCell),
        (BRC(neuromodulated=True), NeuromodulatedBistableRecurrentCell),
    ],
    ids=str,
)
def test_equals_brc_pytorch(config, kind):
    mixer, x = build(config, causal=True), tokens(15)
    theirs, cell = kind(DIM, DIM).double(), mixer.cells[0]
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        kernels = (theirs.kernelr, theirs.kernelz, theirs.kernelh)
        cell.to_gates.weight.copy_(torch.cat([kernel.T for kernel in kernels]))
        cell.memory.copy_(torch.cat((theirs.memoryr, theirs.memoryz), dim=-1))
        cell.bias.copy_(torch.cat((theirs.br, theirs.bz)))
    h, outputs = torch.zeros(2, DIM).double(), []
    for t in range(15):
        h = theirs(x[:, t], h)
        outputs.append(h)
    torch.testing.assert_close(mixer(x), mixer.to_out(torch.stack(outputs, 1)), **close)


@pytest.mark.parametrize(("feedback", "stable"), [(0.5, False), (1.5, True)])
def test_a_state_lasts_where_the_feedback_exceeds_one(feedback, stable):
    """Without input, h = tanh(a h): above a = 1 it settles at either of two values, else at 0."""
    mixer = build(BRC(), causal=True)
    cell = mixer.cells[0]
    with torch.no_grad():
        cell.memory.zero_()
        cell.bias[:DIM] = torch.atanh(torch.tensor(feedback - 1.0))
    h = torch.full((2, DIM), 0.3).double()
    h[1] = -0.3
    _, (after,) = cell(torch.zeros(2, 300, DIM).double(), (h,))
    if stable:
        assert (after[0] > 0.8).all()
        torch.testing.assert_close(after[1], -after[0], **close)
        torch.testing.assert_close(after, torch.tanh(feedback * after), rtol=0, atol=1e-6)
    else:
        assert after.abs().max() < 1e-6


def test_channels_of_a_plain_cell_do_not_meet():
    """In the recurrence itself: change the state of one channel, and no other moves."""
    for config, alone in ((BRC(), True), (BRC(neuromodulated=True), False)):
        cell, x = build(config, causal=True).cells[0], tokens(5)
        h = torch.randn(2, DIM).double()
        other = h.clone()
        other[:, 3] += 1.0
        moved = (cell(x, (h,))[0] != cell(x, (other,))[0]).any(1).any(0)
        assert (moved.nonzero().flatten().tolist() == [3]) == alone
