"""ETC against FlexAttention with its labels, pair by pair, and at its limits."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from mixers.fixed_patterns import DIM, HEADS, D, attention, build, close, heads, pairs, tokens
from weft.errors import Unsupported, WeftError
from weft.kernels.block_sparse.band import in_band, key_runs, skew
from weft.layers.positions import Alibi
from weft.mixers import ETC, Frame


def stirred(config, **settings):
    mixer = build(config, **settings)
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            if name.endswith("labels"):
                parameter.normal_()
    return mixer


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("n", [16, 48])
def test_equals_flex_attention_with_labels(n):
    mixer, x = stirred(ETC(window=5, global_tokens=4, clip=3, own_output=False)), tokens(n)
    q, k, v = heads(mixer.project, x)
    q, k, v = (y.detach() for y in (q, k, v))
    long = torch.einsum("bhid,hld->bhil", q, mixer.long_labels)
    wide = torch.einsum("bhid,hld->bhil", q, mixer.global_labels)
    long, wide = long.detach(), wide.detach()

    def label(i, j):
        near = (j - i).clamp(-3, 3) + 3
        return torch.where((i < 4) == (j < 4), near, torch.full_like(near, 8))

    def score(s, b, h, i, j):
        added = torch.where(i < 4, wide[b, h, i, label(i, j)], long[b, h, i, label(i, j)])
        return s + added * D**-0.5

    def seen(b, h, i, j):
        return ((i - j).abs() < 5) | (i < 4) | (j < 4)

    mask = create_block_mask(seen, None, None, n, n, device="cpu", BLOCK_SIZE=16)
    with torch.no_grad():
        y = flex_attention(q, k, v, score_mod=score, block_mask=mask)
        expected = mixer.project.to_out(y.transpose(1, 2).flatten(2))
        torch.testing.assert_close(mixer(x), expected, **close)


@pytest.mark.parametrize("n", [3, 4, 5, 30])
def test_the_definition_with_members(n):
    """One query at a time, in plain loops."""
    config = ETC(window=4, global_tokens=3, clip=2)
    mixer, x = stirred(config), tokens(n)
    member = torch.randint(-1, 3, (2, n))
    q, k, v = heads(mixer.project, x)
    out = torch.zeros_like(q)
    for b in range(2):
        for i in range(n):
            table = mixer.global_labels if i < 3 else mixer.long_labels
            keys = [j for j in range(n) if i < 3 or j < 3 or abs(i - j) < 4]
            scores = []
            for j in keys:
                if (i < 3) == (j < 3):
                    label = max(-2, min(2, j - i)) + 2
                else:
                    token, summary = (j, i) if i < 3 else (i, j)
                    label = 5 if member[b, token] == summary else 6
                scores.append((q[b, :, i] * (k[b, :, j] + table[:, label])).sum(-1) * D**-0.5)
            weights = torch.stack(scores, -1).softmax(-1)
            out[b, :, i] = torch.einsum("hj,hjd->hd", weights, v[b][:, keys])
    joined = out.transpose(1, 2).flatten(2)
    expected = torch.cat(
        (mixer.to_out_global(joined[:, :3]), mixer.project.to_out(joined[:, 3:])), dim=1
    )
    torch.testing.assert_close(mixer(x, member=member), expected, **close)
    # The same labels travel with tokens that padding moved.
    wide = torch.randn(2, 2 * n, DIM, dtype=torch.float64)
    valid = torch.arange(2 * n).expand(2, -1) % 2 == 1
    wide[valid] = x.flatten(0, 1)
    spread = torch.zeros(2, 2 * n, dtype=torch.long)
    spread[valid] = member.flatten()
    y = mixer(wide, valid=valid, member=spread)
    torch.testing.assert_close(y[valid], expected.flatten(0, 1), **close)


def test_without_global_tokens_and_labels_it_is_a_window():
    mixer, x = build(ETC(window=6, global_tokens=0)), tokens(50)
    with torch.no_grad():
        mixer.long_labels.zero_()
    seen = pairs(50, lambda i, j: abs(i - j) < 6)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_a_window_over_everything_is_full_attention():
    mixer, x = build(ETC(window=30, global_tokens=3, own_output=False)), tokens(30)
    with torch.no_grad():
        mixer.long_labels.zero_()
        mixer.global_labels.zero_()
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, None), **close)


def test_dropout_reaches_every_row():
    mixer, x = build(ETC(window=5, global_tokens=2), dropout=0.5), tokens(30)
    rows = torch.stack([mixer(x) for _ in range(4)])
    assert (rows[0] != rows[1:]).any(0).any(-1).all()


def test_bands_by_hand():
    x = torch.arange(1.0, 8.0)[:, None]
    runs = key_runs(x, 3, 2, 1)[..., 0]
    assert runs.tolist() == [[0, 0, 1, 2, 3, 4], [2, 3, 4, 5, 6, 7], [5, 6, 7, 0, 0, 0]]
    rows = torch.tensor([[1, 2], [3, 4], [5, 6]])
    assert skew(rows).tolist() == [[1, 2, 0, 0], [0, 3, 4, 0], [0, 0, 5, 6]]
    assert torch.equal(in_band(3, 2, x.device), skew(rows) > 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ETC(window=0), "window is a whole number of at least 1"),
        (lambda: ETC(global_tokens=-1), "global_tokens is a whole number of at least 0"),
        (lambda: ETC(clip=-1), "clip is a whole number of at least 0"),
        (
            lambda: build(ETC())(tokens(4), member=torch.zeros(2, 4)),
            "member is a whole number, the global token that stands for each, −1 for none",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(WeftError, match=message):
        make()


def test_refuses_positions():
    with pytest.raises(Unsupported, match="etc distinguishes pairs by its labels"):
        ETC().build(Frame(dim=DIM, heads=HEADS, positions=Alibi()))
