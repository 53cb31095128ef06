"""Swin against the Transformers library, and against windows found by rolling and by hand."""

import pytest
import torch
from transformers import SwinConfig
from transformers.models.swin.modeling_swin import SwinLayer

from mixers.fixed_patterns import (
    DIM,
    HEADS,
    attention,
    build,
    close,
    copy_linears,
    heads,
    joined,
    pairs,
    tokens,
)
from weft.errors import Unsupported, WeftError
from weft.kernels.block_sparse import windows
from weft.kernels.block_sparse.windows import WindowGrid, from_windows, into_windows
from weft.layers.positions import Rope
from weft.mixers import Frame, Swin


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 12), (12, 8)])
@pytest.mark.parametrize("shift", [0, 2])
def test_equals_transformers(height, width, shift):
    """Their layer with everything but the attention made the identity or removed."""
    config = SwinConfig(window_size=4, attention_probs_dropout_prob=0.0, qkv_bias=True)
    theirs = SwinLayer(config, DIM, (height, width), HEADS, 0.0, shift_size=shift).double().eval()
    mixer = build(Swin(width=width, size=4, shift=shift))
    inner = next(m for m in theirs.modules() if hasattr(m, "relative_position_bias_table"))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        table = inner.relative_position_bias_table.view(7, 7, HEADS).permute(2, 0, 1)
        mixer.table.copy_(table)
    linears = {name.rpartition(".")[2]: m for name, m in theirs.attention.named_modules()}
    copy_linears(mixer.project, *(linears[f"{a}_proj"] for a in "qkvo"))
    x = tokens(height * width)
    seen = {}
    theirs.layernorm_before.register_forward_hook(lambda m, _, out: seen.update(normed=out))
    theirs.layernorm_after.register_forward_pre_hook(lambda m, args: seen.update(joined=args[0]))
    theirs(x, (height, width))
    normed = seen["normed"].reshape(2, height * width, DIM)
    expected = seen["joined"].reshape(2, height * width, DIM) - x
    torch.testing.assert_close(mixer(normed), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("n", [1, 5, 16, 40])
def test_the_definition(n, shift):
    mixer, x = build(Swin(width=8, size=3, shift=shift), kv_heads=2), tokens(n)
    with torch.no_grad():
        mixer.table.normal_()
    place = [((p // 8 + shift) // 3, (p % 8 + shift) // 3) for p in range(n)]
    seen = pairs(n, lambda i, j: place[i] == place[j])
    bias = torch.zeros(HEADS, n, n, dtype=torch.float64)
    for i, j in seen.nonzero().tolist():
        bias[:, i, j] = mixer.table[:, i // 8 - j // 8 + 2, i % 8 - j % 8 + 2]
    added = bias.masked_fill(~seen, -torch.inf)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, added), **close)


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_windows_on_a_line_move_by_half_in_odd_layers(layer):
    mixer, x = build(Swin(size=6), layer=layer), tokens(25)
    with torch.no_grad():
        mixer.table.normal_()
    shift = 3 * (layer % 2)
    added = torch.full((HEADS, 25, 25), -torch.inf, dtype=torch.float64)
    for i in range(25):
        for j in range(25):
            if (i + shift) // 6 == (j + shift) // 6:
                added[:, i, j] = mixer.table[:, 0, i - j + 5]
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, added), **close)


def test_one_window_is_full_attention_with_a_bias():
    mixer, x = build(Swin(size=30)), tokens(30)
    with torch.no_grad():
        mixer.table.zero_()
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, None), **close)


def test_equals_rolling_the_picture_where_nothing_wraps():
    """The paper's way: roll, attend in whole windows under a mask, roll back."""
    mixer, x = build(Swin(width=8, size=4, shift=2)), tokens(64)
    with torch.no_grad():
        mixer.table.zero_()
    q, k, v = (y.unflatten(2, (8, 8)).roll((-2, -2), (2, 3)) for y in heads(mixer.project, x))
    region = torch.zeros(8, 8)
    for a, rows in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
        for b, columns in enumerate((slice(0, 4), slice(4, 6), slice(6, 8))):
            region[rows, columns] = 3 * a + b
    out = torch.zeros_like(q)
    for y in (0, 4):
        for z in (0, 4):
            cut = (..., slice(y, y + 4), slice(z, z + 4), slice(None))
            label = region[y : y + 4, z : z + 4].flatten()
            part = torch.nn.functional.scaled_dot_product_attention(
                *(a[cut].flatten(2, 3) for a in (q, k, v)),
                attn_mask=label[:, None] == label,
            )
            out[cut] = part.unflatten(2, (4, 4))
    out = out.roll((2, 2), (2, 3)).flatten(2, 3)
    torch.testing.assert_close(mixer(x), joined(mixer.project, out), **close)


@pytest.mark.parametrize("shift", [(0, 0), (1, 2), (2, 0)])
@pytest.mark.parametrize("n", [1, 9, 20, 33])
def test_windows_come_back(n, shift):
    x, grid = torch.randn(2, 3, n, 4), WindowGrid(7, (3, 4), shift)
    windows = into_windows(x, grid)
    assert torch.equal(from_windows(windows, grid, n), x)
    first = x[:, :, 0]
    assert torch.equal(windows[:, 0, :, shift[0] * 4 + shift[1]], first)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Swin(size=0), "size is a whole number of at least 1"),
        (lambda: Swin(width=0), "width is a whole number of at least 1"),
        (lambda: Swin(size=4, shift=4), "0 ≤ shift < size=4; got shift=4"),
    ],
)
def test_bad_settings(make, message):
    with pytest.raises(WeftError, match=message):
        make()


def test_refusals():
    with pytest.raises(Unsupported, match="swin learns a bias for every offset"):
        Swin().build(Frame(dim=DIM, heads=HEADS, positions=Rope()))
    with pytest.raises(Unsupported, match="swin cannot be causal"):
        Swin().build(Frame(dim=DIM, heads=HEADS, causal=True))


def test_more_windows_than_a_kernel_counts_go_in_parts(monkeypatch):
    """A GPU's kernel with dropout takes 65,535 rows of a batch at the most."""
    mixer, x = build(Swin(size=3)), tokens(20)
    whole, sizes, attend = mixer(x), [], windows.F.scaled_dot_product_attention

    def counted(q, *given, **more):
        sizes.append(len(q))
        return attend(q, *given, **more)

    monkeypatch.setattr(windows, "MOST_ROWS", 4)
    monkeypatch.setattr(windows.F, "scaled_dot_product_attention", counted)
    assert torch.equal(mixer(x), whole)
    assert max(sizes) == 4
    assert sum(sizes) == len(x) * 7
