"""LSH attention against Hugging Face's, against dense shared-QK attention and its definition."""

import math

import pytest
import torch
from reformer_pytorch.reformer_pytorch import FullQKAttention
from torch import nn
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from weft.errors import Unsupported, WeftError
from weft.kernels.lsh.reformer import chunks_of_buckets, chunks_of_order
from weft.layers.positions import Alibi, Rope, T5Bias
from weft.mixers import Frame, Reformer
from weft.testing import assert_close, assert_identical
from weft.testing.invariance import check_causality

DIM, HEADS = 24, 3


def build(config, dtype=torch.float64, **frame):
    mixer = config.build(Frame(dim=DIM, heads=HEADS, **frame))
    return mixer.to(dtype).eval()


def pass_heads_through(mixer):
    """The output projection becomes the identity."""
    mixer.to_out = nn.Identity()
    return mixer


def tokens(*shape, dtype=torch.float64):
    return torch.randn(*shape, DIM, dtype=dtype)


def twin_of(theirs, settings, config, **frame):
    """Our mixer with the weights and the rotations that Hugging Face draws from its seed."""
    ours = pass_heads_through(build(config, bias=False, **frame))
    torch.manual_seed(settings.hash_seed)
    shape = (HEADS, DIM // HEADS, config.rounds, ours.rotations.shape[-1])
    rotations = torch.randn(shape, dtype=torch.float64)
    with torch.no_grad():
        ours.to_qk.weight.copy_(theirs.query_key.weight)
        ours.to_v.weight.copy_(theirs.value.weight)
        ours.rotations.copy_(rotations.transpose(1, 2))
    return ours


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("rounds", "buckets", "their_buckets", "before", "after"),
    [(1, 8, 8, 1, 0), (3, 8, 8, 1, 0), (2, 6, 6, 1, 1), (2, 4, 4, 2, 0), (2, 160, [10, 16], 1, 0)],
)
def test_published_form_is_hugging_faces(causal, rounds, buckets, their_buckets, before, after):
    settings = ReformerConfig(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        attention_head_size=DIM // HEADS,
        lsh_attn_chunk_length=8,
        lsh_num_chunks_before=before,
        lsh_num_chunks_after=after,
        num_hashes=rounds,
        num_buckets=their_buckets,
        is_decoder=causal,
        hash_seed=11,
        lsh_attention_probs_dropout_prob=0.0,
    )
    theirs = LSHSelfAttention(settings, layer_idx=0).double().eval()
    config = Reformer(
        chunk=8, rounds=rounds, buckets=buckets, lookback=before, lookahead=after, published=True
    )
    ours = twin_of(theirs, settings, config, causal=causal)
    x = tokens(2, 56)
    with torch.no_grad():
        expected = theirs(x)
        y = ours(x)
    found = ours.heads(x)[3] + torch.arange(rounds)[:, None] * buckets
    assert torch.equal(found, expected.buckets)
    assert_close(y, expected.hidden_states, "published form and Hugging Face")


@pytest.mark.parametrize(
    ("config", "causal"),
    [
        (Reformer(chunk=40, rounds=1, buckets=4), False),
        (Reformer(chunk=33, rounds=3, buckets=6), False),
        (Reformer(chunk=17, rounds=3, buckets=6), False),
        (Reformer(chunk=17, rounds=2, buckets=6, lookahead=1), False),
        (Reformer(chunk=40, rounds=2, buckets=6, published=True), True),
        (Reformer(chunk=17, rounds=2, buckets=1), True),
        (Reformer(chunk=40, rounds=1, buckets=1, lookback=0), True),
    ],
    ids=str,
)
def test_chunks_that_hold_all_are_dense_shared_attention(config, causal):
    """Also with several rounds and looking both ways: no key is counted twice in a round."""
    mixer = pass_heads_through(build(config, causal=causal))
    x = tokens(2, 33) * 3
    shared = mixer.to_qk(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1)
    v = mixer.to_v(x).unflatten(-1, (HEADS, -1)).transpose(1, 2).flatten(0, 1)
    # Theirs divides the scores by √d once more.
    dense, _, _ = FullQKAttention(causal=causal)(shared * (DIM // HEADS) ** 0.5, v)
    expected = dense.unflatten(0, (2, HEADS)).transpose(1, 2).flatten(2)
    # Our keys are divided by √(mean square + 1e-6), theirs by the norm alone.
    assert_close(mixer(x), expected, "one chunk and dense attention", tolerance=1e-5)


def listed_by(config, buckets, n):
    """What each token lists in each round, straight from the definition; buckets[r][i]."""
    lists = []
    for numbers in buckets:
        for i in range(n):
            mates = [j for j in range(i) if numbers[j] == numbers[i]]
            chunk_of = {j: rank // config.chunk for rank, j in enumerate(mates)}
            own = len(mates) // config.chunk
            lists.append([j for j in mates if own - chunk_of[j] <= config.lookback])
    return [[lists[r * n + i] for r in range(len(buckets))] for i in range(n)]


@pytest.mark.parametrize("n", [1, 2, 29])
def test_causal_form_from_its_definition(n):
    config = Reformer(chunk=3, rounds=2, buckets=4)
    mixer = pass_heads_through(build(config, causal=True))
    x = tokens(1, n)
    q = mixer.to_qk(x).unflatten(-1, (HEADS, -1))[0]
    v = mixer.to_v(x).unflatten(-1, (HEADS, -1))[0]
    k = q / (q.square().mean(-1, keepdim=True) + 1e-6).sqrt() / (DIM // HEADS) ** 0.5
    y = mixer(x)[0].unflatten(-1, (HEADS, -1))
    for head in range(HEADS):
        turned = torch.einsum("nd,rdc->rnc", q[:, head], mixer.rotations[head])
        buckets = torch.cat((turned, -turned), -1).argmax(-1).tolist()
        for i, rounds in enumerate(listed_by(config, buckets, n)):
            keys = [j for listed in rounds for j in listed] or [i]
            weights = (k[keys, head] @ q[i, head]).softmax(0)
            assert_close(y[i, head], weights @ v[keys, head], f"token {i}, head {head}")


def test_published_causal_form_reads_the_future():
    """Why ours differs: the same check that ours passes bit for bit catches the published form."""
    config = Reformer(chunk=4, rounds=2, buckets=4)
    check_causality(config)
    with pytest.raises(AssertionError, match="outputs before the change"):
        check_causality(Reformer(chunk=4, rounds=2, buckets=4, published=True))


@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_forms_outside_the_contract_equal_the_reference(n, published, lookahead):
    config = Reformer(chunk=4, rounds=2, buckets=4, lookahead=lookahead, published=published)
    x = tokens(3, n).requires_grad_()
    valid = torch.arange(n) < torch.tensor([[n], [(n + 1) // 2], [1]])
    for causal in (False, True) if published else (False,):
        mixer = build(config, causal=causal)
        y, truth = mixer(x, valid=valid)[valid], mixer.reference(x, valid)[valid]
        assert_close(y, truth, f"{config}, n={n}")
        wanted = torch.randn_like(y)
        ours = torch.autograd.grad((y * wanted).sum(), x)[0]
        expected = torch.autograd.grad((truth * wanted).sum(), x)[0]
        assert_close(ours, expected, f"{config}, n={n}: gradient")


@pytest.mark.parametrize("published", [False, True])
def test_neighbours_wrap_around_real_tokens_only(published):
    """A row of 10 tokens lists the same keys whether the batch is 10 or 47 tokens long."""
    config = Reformer(chunk=4, rounds=3, buckets=6, lookback=1, lookahead=1, published=published)
    mixer = build(config)
    x = tokens(1, 10)
    longer = torch.cat((x, tokens(1, 37) * 10), 1)
    y = mixer(longer, valid=torch.arange(47)[None] < 10)
    assert_close(y[:, :10], mixer(x), "padded and alone")
    assert not y[:, 10:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_a_token_without_others_reads_itself_exactly(causal, dtype):
    mixer = build(Reformer(chunk=4, rounds=3, buckets=4), dtype, causal=causal)
    x = tokens(2, 5, dtype=dtype)
    alone = mixer.to_out(mixer.to_v(x[:, :1]))
    assert_identical(mixer(x[:, :1]), alone, "one token")
    if causal:
        assert_close(mixer(x)[:, :1], alone, "the first token", tolerance=1e-2)


def test_a_token_reads_itself_only_without_others():
    """Two tokens of opposite direction read one another, whatever their own score."""
    mixer = pass_heads_through(build(Reformer(chunk=4, rounds=1, buckets=2)))
    x = tokens(1, 2)
    assert_close(mixer(x), mixer.to_v(x).flip(1), "two tokens swap their values")


def test_layouts_read_what_they_say():
    buckets = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1]).view(1, 1, 1, 8)
    layout = chunks_of_buckets(buckets, 2, size=2, lookback=1)
    assert reading(layout, 8) == [[], [], [1], [0], [1, 2], [1, 2, 4], [0, 3], [4, 5]]
    layout = chunks_of_order(
        buckets,
        2,
        torch.tensor([7]),
        size=2,
        lookback=1,
        lookahead=0,
        causal=False,
        across_rounds=False,
    )
    # The order is 0 3 | 6 1 | 2 4 | 5, and token 7 is padding.
    assert reading(layout, 7) == [
        [3, 5],
        [0, 3, 6],
        [1, 4, 6],
        [0, 5],
        [1, 2, 6],
        [2, 4],
        [0, 1, 3],
    ]


def reading(layout, n):
    """The tokens that each of the first n tokens reads."""
    size = layout.asks.shape[-1]
    found = []
    for i in range(n):
        chunk, place = divmod(int(layout.slot[0, 0, 0, i]), size)
        assert layout.asks[0, 0, chunk, place] == i
        found.append(sorted(layout.reads[0, 0, chunk][layout.mask[0, 0, chunk, place]].tolist()))
    return found


def test_work_grows_with_the_length_not_with_its_square():
    buckets = torch.randint(0, 16, (1, 1, 1, 4096))
    for layout in (
        chunks_of_buckets(buckets, 16, size=64, lookback=1),
        chunks_of_order(
            buckets,
            16,
            torch.tensor([4096]),
            size=64,
            lookback=1,
            lookahead=0,
            causal=False,
            across_rounds=False,
        ),
    ):
        assert layout.mask.numel() <= 2 * 64 * (4096 + 16 * 64)


def test_many_new_tokens_and_few_take_the_same_keys():
    """`step` has two ways, by look-up and by layout: prompts and single tokens, with rotary."""
    mixer = build(Reformer(chunk=4, rounds=2, buckets=4), causal=True, positions=Rope(), kv_heads=1)
    x = tokens(2, 60)
    whole = mixer(x)
    for pieces in ([60], [31, 29], [8, 9, 7, 10, 26], [1] * 60):
        state, outputs = mixer.start(2), []
        for piece in x.split(pieces, 1):
            y, state = mixer.step(piece, state)
            outputs.append(y)
        assert_close(torch.cat(outputs, 1), whole, f"in pieces of {pieces}")
        assert state.size() == mixer.state_size(60) == 60 * (HEADS * (8 + 2) + 8)


def test_rotary_positions_do_not_move_buckets():
    config = Reformer(chunk=4, rounds=2, buckets=4)
    plain, turned = build(config), build(config, positions=Rope())
    turned.load_state_dict(plain.state_dict())
    x = tokens(1, 30)
    assert torch.equal(plain.heads(x)[3], turned.heads(x)[3])
    assert not torch.allclose(plain(x), turned(x))


def test_hash_depends_on_the_module_alone():
    mixer = build(Reformer(chunk=4, rounds=2, buckets=160))
    x = tokens(3, 50)
    buckets = mixer.heads(x)[3]
    assert torch.equal(mixer.heads(x[1:2, :20])[3], buckets[1:2, ..., :20])
    assert torch.equal(mixer.heads(x * 3)[3], build_like(mixer, layer=0).heads(x * 3)[3])
    assert not torch.equal(build_like(mixer, layer=1).rotations, mixer.rotations)
    assert not torch.equal(build_like(mixer, seed=1).rotations, mixer.rotations)
    assert buckets.min() >= 0
    assert buckets.max() < 160
    assert len(buckets.unique()) > 80


def build_like(mixer, **frame):
    other = build(mixer.config, **frame)
    other.to_qk.load_state_dict(mixer.to_qk.state_dict())
    return other


@pytest.mark.parametrize("causal", [False, True])
def test_bucket_count_follows_the_frame_not_the_batch(causal):
    config = Reformer(chunk=64)
    per_length = {
        length: config.bucket_count(Frame(dim=8, causal=causal, length=length))
        for length in (10, 64, 1000, 4096, 65536, None)
    }
    assert per_length[None] == per_length[4096] == (32 if causal else 128)
    assert per_length[10] == 1
    assert per_length[65536] == 16 * per_length[4096]
    assert all(math.log2(count).is_integer() for count in per_length.values())
    build(Reformer(chunk=64, rounds=1), length=65536)(tokens(1, 3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk": 0}, "chunk is at least 1; got chunk=0"),
        ({"rounds": 0}, "rounds is at least 1"),
        ({"lookback": -1}, "lookback is at least 0"),
        ({"buckets": 7}, "1 or even; got 7"),
        ({"buckets": 0}, "1 or even; got 0"),
        ({"buckets": 130}, "multiple of 4; got 130"),
    ],
)
def test_rules_of_the_settings(settings, message):
    with pytest.raises(WeftError, match=message):
        Reformer(**settings)


def test_what_it_refuses():
    for positions in (Alibi(), T5Bias()):
        with pytest.raises(Unsupported, match="use positions=Rope"):
            build(Reformer(), positions=positions)
    with pytest.raises(WeftError, match="use lookahead=0"):
        build(Reformer(lookahead=1), causal=True)
    with pytest.raises(Unsupported, match="published=False streams"):
        build(Reformer(published=True), causal=True).start(1)
    with pytest.raises(Unsupported, match="build it causal=True"):
        build(Reformer()).start(1)
