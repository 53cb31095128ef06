"""BigBird against the Transformers library in training mode, and the pattern written out."""

import numpy as np
import pytest
import torch
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import (
    BigBirdBlockSparseAttention,
    BigBirdModel,
)

from mixers.fixed_patterns import (
    DIM,
    HEADS,
    D,
    attention,
    build,
    close,
    copy_linears,
    decoded,
    heads,
    joined,
    pairs,
    tokens,
)
from weft.errors import WeftError
from weft.kernels.attend.api import attend
from weft.mixers import BigBird
from weft.patterns import BlockNeighbours, Global, PerHead, Predicate, RandomBlocks
from weft.patterns.derive import mask

BLOCK, BLOCKS, RANDOM = 4, 12, 2
N = BLOCK * BLOCKS


def their_layer():
    """Their layer; only in training mode does it draw random blocks."""
    config = BigBirdConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        block_size=BLOCK,
        num_random_blocks=RANDOM,
        max_position_embeddings=N,
    )
    theirs = BigBirdBlockSparseAttention(config, seed=3).double().train()
    for bias in (p for p in theirs.parameters() if p.dim() == 1):
        torch.nn.init.normal_(bias, std=0.1)
    return theirs


def run_theirs(theirs, x, valid):
    blocked, band, row, column = BigBirdModel.create_masks_for_block_sparse_attn(
        valid.double(), BLOCK
    )
    masks = {"band_mask": band, "from_mask": row, "to_mask": column}
    blocks = {"from_blocked_mask": blocked, "to_blocked_mask": blocked}
    return theirs(x, **masks, **blocks)[0]


def within(table):
    """Query block u reads the key blocks table[u − 1]; the first and last blocks draw none."""
    rows = np.full((BLOCKS, RANDOM), -1)
    rows[1:-1] = table

    def test(i, j):
        drawn = torch.as_tensor(rows) if isinstance(i, torch.Tensor) else rows
        return (drawn[i // BLOCK] == (j // BLOCK)[..., None]).any(-1)

    return Predicate(test, "drawn")


@pytest.mark.parametrize("missing", [0, 3])
def test_equals_transformers_under_its_own_draw(missing, monkeypatch):
    theirs, tables = their_layer(), []
    draw = theirs._bigbird_block_rand_mask_with_head
    monkeypatch.setattr(
        theirs,
        "_bigbird_block_rand_mask_with_head",
        lambda **given: tables.append(draw(**given)) or tables[-1],
    )
    mixer, x = build(BigBird(block=BLOCK, random=RANDOM)), tokens(N)
    copy_linears(mixer.project, theirs.query, theirs.key, theirs.value)
    valid = torch.arange(N) < torch.tensor([N, N - missing])[:, None]
    expected = run_theirs(theirs, x, valid)
    assert len(tables) == 1
    fixed = BlockNeighbours(BLOCK) | Global(first=BLOCK, last=BLOCK)
    pattern = PerHead(*(fixed | within(table) for table in tables[0]))
    q, k, v = heads(mixer.project, x)
    found = joined(mixer.project, attend(q, k, v, pattern, valid=valid))
    torch.testing.assert_close(found[valid], expected[valid], **close)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_equals_transformers_under_our_draw(missing, monkeypatch):
    """Their layer, told which blocks to draw, is our mixer."""
    theirs, mixer, x = their_layer(), build(BigBird(block=BLOCK, random=RANDOM, seed=5)), tokens(N)
    copy_linears(mixer.project, theirs.query, theirs.key, theirs.value)
    draw = next(
        p for p in mixer.config.pattern(mixer.frame, N).parts if isinstance(p, RandomBlocks)
    )
    table = draw.table(N)[1:-1]
    assert (table >= 0).all()
    monkeypatch.setattr(
        theirs, "_bigbird_block_rand_mask_with_head", lambda **given: [table] * HEADS
    )
    valid = torch.arange(N) < torch.tensor([N, N - missing])[:, None]
    expected = run_theirs(theirs, x, valid)
    torch.testing.assert_close(mixer(x, valid=valid)[valid], expected[valid], **close)


def test_their_evaluation_counts_the_first_block_again():
    """Why parity needs training mode: without a draw block 0 stands in for every random block."""
    theirs, x = their_layer().eval(), tokens(N)
    mixer = build(BigBird(block=BLOCK, random=0))
    copy_linears(mixer.project, theirs.query, theirs.key, theirs.value)
    valid = torch.ones(2, N, dtype=torch.bool)
    apart = (run_theirs(theirs, x, valid) - mixer(x)).abs().amax(-1)
    assert (apart[:, BLOCK:-BLOCK] > 1e-6).all()
    assert (apart[:, :BLOCK] < 1e-10).all()


def written_out(n, table):
    """The paper's pattern over n tokens, given the random blocks of each block."""
    last = (n - 1) // BLOCK

    def reads(i, j):
        u, v = i // BLOCK, j // BLOCK
        return {u, v} & {0, last} or abs(u - v) <= 1 or v in table[u]

    return pairs(n, reads)


@pytest.mark.parametrize("n", [1, 4, 5, 30, 48, 50])
def test_the_definition_at_any_length(n):
    config = BigBird(block=BLOCK, random=RANDOM, seed=2)
    mixer, x = build(config, layer=1), tokens(n)
    parts = config.pattern(mixer.frame, n).parts
    draw = next(p for p in parts if isinstance(p, RandomBlocks))
    seen = written_out(n, draw.table(n).tolist())
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)
    # Every key counts once: a row of equal scores weighs its keys equally.
    with torch.no_grad():
        mixer.project.to_q.weight.zero_()
        mixer.project.to_q.bias.zero_()
    shares = seen.double() / seen.sum(1, keepdim=True)
    mean = shares @ mixer.project.to_v(x)
    torch.testing.assert_close(mixer(x), mixer.project.to_out(mean), **close)


def test_rows_of_a_batch_have_the_last_block_of_their_own_length():
    mixer, x = build(BigBird(block=BLOCK, random=1)), tokens(50, b=4)
    lengths = [50, 31, 29, 3]
    valid = torch.arange(50) < torch.tensor(lengths)[:, None]
    found = mixer(x, valid=valid)
    for row, n in enumerate(lengths):
        alone = mixer(x[row : row + 1, :n])
        torch.testing.assert_close(found[row : row + 1, :n], alone, **close)


def test_a_short_batch_leaves_no_trace():
    mixer, x = build(BigBird(block=BLOCK)), tokens(N)
    before = mixer(x)
    mixer(tokens(3))
    torch.testing.assert_close(mixer(x), before, rtol=0, atol=0)


def test_draws_differ_by_layer_and_seed_and_not_by_mode():
    def drawn(mixer):
        return mask(mixer.config.pattern(mixer.frame, 400), 400)

    config = BigBird(block=BLOCK)
    mixer = build(config)
    assert (drawn(mixer) == drawn(mixer.eval())).all()
    assert (drawn(mixer) == drawn(build(config))).all()
    for other in (
        build(config, layer=1),
        build(config, seed=1),
        build(BigBird(block=BLOCK, seed=1)),
    ):
        assert (drawn(mixer) != drawn(other)).any()


def test_leading_global_tokens():
    config = BigBird(block=BLOCK, random=0, mode="etc", global_tokens=3)
    mixer, x = build(config), tokens(30)
    seen = pairs(30, lambda i, j: abs(i // BLOCK - j // BLOCK) <= 1 or min(i, j) < 3)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


def test_causal_reads_the_past_of_the_pattern():
    config = BigBird(block=BLOCK, random=2, seed=4)
    mixer, x = build(config, causal=True, kv_heads=2), tokens(N)
    seen = mask(mixer.pattern, N)[0]
    assert not seen.triu(1).any()
    blocks = seen.unflatten(1, (-1, BLOCK)).any(-1).unflatten(0, (-1, BLOCK)).any(1)
    for u in range(BLOCKS):
        read = set(blocks[u].nonzero().flatten().tolist())
        assert {0, max(0, u - 1), u} <= read
        # Its own, the one before, the first, and two that were drawn.
        assert len(read) == min(u + 1, 5)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)
    torch.testing.assert_close(decoded(mixer, x, [1, 9, 1, 37]), mixer(x), **close)
    for t in (0, 1, 17, 500):
        assert mixer.state_size(t) == 2 * 2 * D * t


def test_causal_without_random_blocks_keeps_the_window_and_the_first_block():
    mixer = build(BigBird(block=BLOCK, random=0), causal=True, kv_heads=2)
    for t in range(40):
        window = t - max(0, t // BLOCK - 1) * BLOCK
        kept = min(t, window + min(BLOCK, max(0, t - window)))
        assert mixer.state_size(t) == 2 * 2 * D * kept


@pytest.mark.parametrize("causal", [False, True])
def test_few_blocks_are_full_attention(causal):
    mixer, x = build(BigBird(block=10), causal=causal), tokens(20)
    seen = pairs(20, lambda i, j: j <= i or not causal)
    torch.testing.assert_close(mixer(x), attention(mixer.project, x, seen), **close)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"block": 0}, "block is a whole number of at least 1; got block=0"),
        ({"random": -1}, "random and global_tokens count blocks and tokens; got random=-1"),
        ({"mode": "both"}, "mode is one of 'itc', 'etc'; got 'both'"),
        ({"mode": "etc"}, "mode='etc' needs global_tokens: how many leading tokens are global?"),
    ],
)
def test_bad_settings(bad, message):
    with pytest.raises(WeftError, match=message):
        BigBird(**bad)
