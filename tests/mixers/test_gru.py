"""The GRU against torch's own, in both directions."""

import torch

from mixers.fixed_patterns import DIM, build, close, tokens
from weft.mixers import GRU


def test_equals_torch_both_ways_on_packed_sequences():
    mixer, x = build(GRU()), tokens(20, b=3)
    theirs = torch.nn.GRU(DIM, DIM, batch_first=True, bidirectional=True).double()
    state = dict(mixer.cells[0].rnn.state_dict())
    state |= {f"{name}_reverse": t for name, t in mixer.cells[1].rnn.state_dict().items()}
    theirs.load_state_dict(state)
    lengths = torch.tensor([20, 13, 4])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    valid = torch.arange(20) < lengths[:, None]
    found = mixer(x, valid=valid)
    torch.testing.assert_close(found[valid], mixer.to_out(y)[valid], **close)


def test_equals_torch_cell_by_cell():
    mixer, x = build(GRU(), causal=True), tokens(9)
    cell = torch.nn.GRUCell(DIM, DIM).double()
    known = mixer.cells[0].rnn.state_dict()
    cell.load_state_dict({name.removesuffix("_l0"): t for name, t in known.items()})
    state, outputs = None, []
    for t in range(9):
        state = cell(x[:, t], state)
        outputs.append(state)
    torch.testing.assert_close(mixer(x), mixer.to_out(torch.stack(outputs, 1)), **close)


def test_a_closed_update_gate_remembers():
    mixer, x = build(GRU(), causal=True), tokens(9)
    rnn = mixer.cells[0].rnn
    with torch.no_grad():
        rnn.bias_ih_l0[DIM : 2 * DIM] = 1e4  # z
    h = torch.randn(2, DIM).double()
    _, (after,) = mixer.cells[0](x, (h,))
    torch.testing.assert_close(after, h, **close)
