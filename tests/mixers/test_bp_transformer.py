"""BP-Transformer: who reads which span, by walking; its limits; how small its state stays."""

from itertools import islice

import pytest
import torch

from mixers.fixed_patterns import D, attention, build, close, decoded, heads, joined, tokens
from weft.errors import Unsupported, WeftError
from weft.kernels.block_sparse.binary_spans import Nodes, halve, levels, sides
from weft.layers.positions import Alibi
from weft.mixers import BPTransformer


def spans(i, n, k, causal=False):
    """The spans (first, last) that token i reads, nearest first, by the rule of the paper."""
    found = [(i, i)]
    for direction in ("left",) if causal else ("left", "right"):
        edge, size = i, 1  # the token at the edge of what is read
        while edge > 0 if direction == "left" else edge < n - 1:
            count = 0
            while edge > 0 if direction == "left" else edge < n - 1:
                aligned = (
                    edge % (2 * size) == 0 if direction == "left" else (edge + 1) % (2 * size) == 0
                )
                if count >= k and aligned:
                    break
                count += 1
                found.append(
                    (edge - size, edge - 1) if direction == "left" else (edge + 1, edge + size)
                )
                edge = edge - size if direction == "left" else edge + size
            size *= 2
    return [(max(0, a), min(n - 1, b)) for a, b in found]


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("n", [1, 2, 9, 32, 77])
def test_every_token_is_read_once(n, k):
    for i in range(n):
        read = sorted(j for a, b in spans(i, n, k) for j in range(a, b + 1))
        assert read == list(range(n))
        found = []
        for level, read in enumerate(islice(sides(i, k), levels(n, k))):
            size = 2**level
            for a, b in ((read.start_left, read.end_left), (read.start_right, read.end_right)):
                found += [(p, min(n - 1, p + size - 1)) for p in range(max(0, a), min(n, b), size)]
        assert sorted([*found, (i, i)]) == sorted(spans(i, n, k))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 6, 33])
def test_the_definition_without_labels(n, causal):
    """One token at a time over spans whose keys and values are pooled by hand."""
    mixer, x = build(BPTransformer(neighbours=2), causal=causal, kv_heads=2), tokens(n)
    with torch.no_grad():
        mixer.labels.zero_()
        mixer.query.normal_()
    q, k, v = heads(mixer.project, x)
    score = torch.einsum("hd,bhnd->bhn", mixer.query.repeat_interleave(2, 0), k) * D**-0.5
    out = torch.zeros_like(q)
    for i in range(n):
        keys, values = [], []
        for a, b in spans(i, n, 2, causal):
            share = score[..., a : b + 1].softmax(-1)[..., None]
            keys.append((share * k[:, :, a : b + 1]).sum(2))
            values.append((share * v[:, :, a : b + 1]).sum(2))
        keys, values = torch.stack(keys, 2), torch.stack(values, 2)
        weights = ((q[:, :, i : i + 1] * keys).sum(-1) * D**-0.5).softmax(-1)
        out[:, :, i] = (weights[..., None] * values).sum(2)
    torch.testing.assert_close(mixer(x), joined(mixer.project, out), **close)


@pytest.mark.parametrize("causal", [False, True])
def test_enough_neighbours_are_full_attention(causal):
    mixer, x = build(BPTransformer(neighbours=29), causal=causal), tokens(30)
    with torch.no_grad():
        mixer.labels.zero_()
    seen = torch.ones(30, 30, dtype=torch.bool)
    seen = seen.tril() if causal else seen
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_labels_tell_places_and_levels_apart():
    """On single tokens a label of the place j − i is a relative key."""
    mixer, x = build(BPTransformer(neighbours=7)), tokens(8)
    with torch.no_grad():
        mixer.labels.normal_()
    q, k, _ = heads(mixer.project, x)
    i = torch.arange(8)
    relative = mixer.labels[0][:, i - i[:, None] + 8]  # (h, n, n, d)
    scores = torch.einsum("bhid,bhijd->bhij", q, k[:, :, None] + relative) * D**-0.5
    y = scores.softmax(-1) @ heads(mixer.project, x)[2]
    torch.testing.assert_close(mixer(x), joined(mixer.project, y), **close)
    mixer, x = build(BPTransformer(neighbours=1, clip=2)), tokens(40)
    y = mixer(x)
    for level in range(3):
        with torch.no_grad():
            mixer.labels[level] += torch.randn_like(mixer.labels[level])
        assert not torch.allclose(mixer(x), y)


def test_halving_is_a_softmax_over_the_tokens_of_a_span():
    kv, lse = torch.randn(2, 3, 11, 4, dtype=torch.float64), torch.randn(2, 3, 11).double()
    nodes = Nodes(kv, lse)
    for size in (2, 4, 8, 16):
        nodes = halve(nodes)
        for p in range(nodes.kv.shape[2]):
            share = lse[..., p * size : (p + 1) * size].softmax(-1)
            wanted = torch.einsum("bgj,bgjd->bgd", share, kv[:, :, p * size : (p + 1) * size])
            torch.testing.assert_close(nodes.kv[:, :, p], wanted, **close)


def test_the_state_grows_as_the_logarithm():
    mixer, x = build(BPTransformer(neighbours=2), causal=True, kv_heads=2), tokens(90)
    torch.testing.assert_close(decoded(mixer, x, [3, 1, 40, 1, 45]), mixer(x), **close)
    node = 2 * (2 * D + 1)
    assert mixer.state_size(1 << 20) <= node * 21 * 8
    assert mixer.state_size(2000) <= mixer.state_size(1000) + 8 * node


def test_pairs_computed_grow_as_n_log_n():
    """Scores of a level are rows of at most 2·(2·neighbours + 3) + block columns."""
    mixer = build(BPTransformer(neighbours=3))
    seen = []

    def counted(n):
        seen.clear()
        from weft.mixers import bp_transformer

        real = bp_transformer.dense_attention
        try:
            bp_transformer.dense_attention = lambda q, k, v, **given: (
                seen.append(q.shape[0] * q.shape[2] * k.shape[2]) or real(q, k, v, **given)
            )
            mixer(tokens(n, b=1))
        finally:
            bp_transformer.dense_attention = real
        return sum(seen)

    small, large = counted(512), counted(2048)
    assert large < 4 * 1.6 * small
    assert len(seen) == levels(2048, 3) == 10


def test_refusals():
    for bad in ({"neighbours": 0}, {"clip": -1}):
        with pytest.raises(WeftError, match="is a whole number of at least"):
            BPTransformer(**bad)
    with pytest.raises(Unsupported, match="spans, which have no single distance"):
        build(BPTransformer(), positions=Alibi())
