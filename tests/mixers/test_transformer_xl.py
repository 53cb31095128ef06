"""Relative attention with memory against XLNet's, and against the walk from segment to segment."""

import math

import pytest
import torch
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from weft.errors import Unsupported, WeftError
from weft.layers.positions import Alibi, Rope
from weft.mixers import Frame, TransformerXL
from weft.mixers.base.relative import cut, shift, sinusoid, windows
from weft.testing import assert_close

DIM, HEADS = 24, 3
WIDTH = DIM // HEADS


def build(config, **frame):
    mixer = config.build(Frame(dim=DIM, heads=HEADS, **{"causal": True, **frame})).double().eval()
    with torch.no_grad():
        mixer.content_bias.normal_()
        mixer.distance_bias.normal_()
    return mixer


def tokens(*shape):
    return torch.randn(*shape, DIM, dtype=torch.float64)


def twin_of(mixer):
    """XLNet's attention with our weights; its residual and norm are undone by `attention_of`."""
    settings = XLNetConfig(d_model=DIM, n_head=HEADS, d_inner=8, vocab_size=8, dropout=0.0)
    theirs = XLNetRelativeAttention(settings).double().eval()
    theirs.layer_norm = torch.nn.Identity()
    weights = {
        "q": mixer.project.to_q.weight.t(),
        "k": mixer.project.to_k.weight.t(),
        "v": mixer.project.to_v.weight.t(),
        "o": mixer.project.to_out.weight,
        "r": mixer.to_r.weight.t(),
        "r_w_bias": mixer.content_bias,
        "r_r_bias": mixer.distance_bias,
    }
    with torch.no_grad():
        for name, value in weights.items():
            getattr(theirs, name).copy_(value.reshape(getattr(theirs, name).shape))
    return theirs


def attention_of(theirs, x, memory, hidden):
    """XLNet's output for x (b, n, c) after `memory` (b, m, c); hidden (n, m + n) is not read."""
    n, m = x.shape[1], x.shape[1] + memory.shape[1]
    position = torch.arange(m, -n, -1, dtype=torch.float64)
    frequency = 1 / 10_000 ** (torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    r = XLNetModel.positional_embedding(position, frequency, x.shape[0])
    h, mems = x.transpose(0, 1), memory.transpose(0, 1)
    hide = hidden[:, :, None, None].double()
    y, _ = theirs(h, None, hide, None, r, None, mems=mems)
    return (y - h).transpose(0, 1)


def test_bidirectional_is_xlnets():
    mixer = build(TransformerXL(segment=5, memory=3), causal=False, bias=False)
    x = tokens(2, 17)
    hidden = torch.zeros(17, 17, dtype=torch.bool)
    expected = attention_of(twin_of(mixer), x, x[:, :0], hidden)
    assert_close(mixer(x), expected, "bidirectional and XLNet")


@pytest.mark.parametrize("memory", [0, 4, 8, 11, 100])
def test_each_segment_is_xlnets_with_its_memory(memory):
    """The paper's loop: segment after segment, the last hidden states handed on as `mems`."""
    mixer = build(TransformerXL(segment=8, memory=memory), bias=False)
    theirs = twin_of(mixer)
    x = tokens(2, 29)
    outputs = []
    for start in range(0, 29, 8):
        segment, mems = x[:, start : start + 8], x[:, max(0, start - memory) : start]
        n = segment.shape[1]
        later = torch.ones(n, mems.shape[1] + n, dtype=torch.bool).triu(mems.shape[1] + 1)
        outputs.append(attention_of(theirs, segment, mems, later))
    assert_close(mixer(x), torch.cat(outputs, 1), "all segments at once, and one after another")


def test_scores_from_the_equation():
    """One head, every pair by itself, with the sum over sines and cosines written out."""
    mixer = TransformerXL(segment=4, memory=3).build(Frame(dim=6, heads=1, causal=True)).double()
    x = torch.randn(1, 10, 6, dtype=torch.float64)
    q, k, v = (t[0, 0] for t in mixer.heads(x))
    u, w = mixer.content_bias[0], mixer.distance_bias[0]
    rows = []
    for i in range(10):
        keys = range(max(0, 4 * (i // 4) - 3), i + 1)
        scores = []
        for j in keys:
            angles = [(i - j) / 10_000 ** (t / 6) for t in (0, 2, 4)]
            r = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
            r = mixer.to_r.weight @ r
            scores.append(((q[i] + u) @ k[j] + (q[i] + w) @ r) / math.sqrt(6))
        rows.append(torch.stack(scores).softmax(0) @ v[list(keys)])
    assert_close(mixer(x)[0], mixer.project.to_out(torch.stack(rows)), "the equation")


@pytest.mark.parametrize("detach", [True, False])
def test_gradients_stop_at_the_memory(detach):
    """Past the segment's start nothing flows back to x; the projections still learn from it."""
    mixer = build(TransformerXL(segment=4, memory=8, detach=detach))
    x = tokens(1, 12).requires_grad_()
    later = mixer(x)[:, 8:].square().sum()
    gradient, weights = torch.autograd.grad(later, [x, mixer.project.to_v.weight])
    assert gradient[:, 8:].abs().min() > 0
    assert bool(gradient[:, :8].any()) is not detach
    one = x[:, 8:].detach()
    state = mixer.start(1)
    with torch.no_grad():
        _, state = mixer.step(x[:, :8], state)
    alone = torch.autograd.grad(mixer.step(one, state)[0].square().sum(), mixer.project.to_v.weight)
    assert not torch.allclose(weights, alone[0])


def test_memory_as_long_as_the_past_is_dense():
    x = tokens(2, 40)
    whole = build(TransformerXL(segment=64, memory=0))
    parts = build(TransformerXL(segment=7, memory=40))
    parts.load_state_dict(whole.state_dict())
    assert_close(parts(x), whole(x), "segments with all the past, and one segment")


def test_what_a_token_reads():
    """Segment 5 and memory 3: change one token, and see which outputs move."""
    mixer = build(TransformerXL(segment=5, memory=3))
    x = tokens(1, 17)
    before = mixer(x)
    for j in range(17):
        changed = x.clone()
        changed[:, j] += 1
        moved = (mixer(changed) - before).abs().amax((0, 2)) > 1e-9
        expected = [j <= i and i // 5 * 5 - 3 <= j for i in range(17)]
        assert moved.tolist() == expected, f"token {j}"


@pytest.mark.parametrize("pieces", [[23], [5, 5, 5, 5, 3], [1] * 23, [3, 9, 11], [6, 1, 16]])
def test_any_split_equals_forward_and_keeps_what_is_read(pieces):
    mixer = build(TransformerXL(segment=5, memory=7), kv_heads=1)
    x = tokens(2, 23)
    state, outputs, count = mixer.start(2), [], 0
    for piece in x.split(pieces, 1):
        y, state = mixer.step(piece, state)
        outputs.append(y)
        count += piece.shape[1]
        kept = min(count, 7 + count % 5)
        assert state.k.shape == state.v.shape == (2, 1, kept, WIDTH)
        assert mixer.state_size(count) == state.size() == 2 * kept * WIDTH
    assert_close(torch.cat(outputs, 1), mixer(x), f"in pieces of {pieces}")


def test_state_is_bounded():
    mixer = build(TransformerXL(segment=16, memory=48))
    assert max(map(mixer.state_size, range(5000))) == 2 * (48 + 15) * DIM


def test_shift_moves_distances_to_keys():
    n, m = 3, 5
    distance = torch.arange(m - 1, -n, -1)
    i, j = torch.arange(m - n, m)[:, None], torch.arange(m)
    assert torch.equal(shift(distance.expand(n, -1).float(), m), (i - j).float())
    past_only = shift(distance[:m].expand(n, -1).float(), m)
    assert torch.equal(past_only[j <= i], (i - j).float()[j <= i])


def test_sinusoid_takes_odd_widths():
    assert sinusoid(torch.arange(4), 5).shape == (4, 5)
    assert_close(sinusoid(torch.tensor([0]), 4), torch.tensor([[0, 0, 1, 1.0]]), "distance 0")
    mixer = TransformerXL(segment=2, memory=2).build(Frame(dim=7, heads=1, causal=True))
    assert mixer(torch.randn(1, 5, 7)).isfinite().all()


def test_what_it_refuses():
    for positions in (Rope(), Alibi()):
        with pytest.raises(Unsupported, match="use positions=None"):
            build(TransformerXL(), positions=positions)
    with pytest.raises(WeftError, match="segment is at least 1; got segment=0"):
        TransformerXL(segment=0)
    with pytest.raises(WeftError, match="memory is at least 0; got memory=-1"):
        TransformerXL(memory=-1)
    with pytest.raises(Unsupported, match="build it causal=True"):
        build(TransformerXL(), causal=False).start(1)


@pytest.mark.parametrize("width", [3, 40])
def test_windows_hold_what_stands_before_each_segment(width):
    """Heads wider and narrower than a segment is long."""
    x = torch.arange(1.0, 8.0)[None, None, :, None].expand(1, 1, 7, width)
    found = windows(x, size=3, memory=2, count=3)
    assert found.shape == (3, 1, 2, width)
    assert found[..., 0].flatten(1).tolist() == [[0, 0], [2, 3], [5, 6]]
    assert cut(x, 3, 3)[..., 0].flatten(1).tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
