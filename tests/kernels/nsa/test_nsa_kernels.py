"""The kernels of native sparse attention, interpreted on a CPU, against fp64 truth."""

import pytest
import torch

import weft.kernels.block_sparse.lists as block_sparse_lists
import weft.kernels.block_sparse.triton as block_sparse
import weft.kernels.nsa.gates as gates
import weft.kernels.nsa.heads as heads_module
import weft.kernels.nsa.importance as importance
import weft.kernels.nsa.lists as selected_lists
import weft.kernels.nsa.reference as selected
import weft.kernels.nsa.slots as slots_module
import weft.kernels.nsa.triton as fused
from kernels.programs import small_programs
from weft.mixers import NSA, Frame, nsa

D = 16


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch):
    for module, name, value in (
        (importance, "WEIGH", (32, 16, 4, 1)),
        (importance, "CHOOSE", (32, 4, 2)),
        (importance, "KEPT", 2),
        (fused, "FORWARD", (32, 4, 1)),
        (fused, "BACKWARD", (16, 4, 1)),
        (fused, "JOIN", (64, 4, 1)),
        (selected_lists, "LEAST", 2),
        (selected_lists, "SIZES", (64, 8)),
        (slots_module, "BLOCK", 16),
        (block_sparse, "TUNING", {16: small_programs(16, 16, 4, 1)}),
    ):
        monkeypatch.setattr(module, name, value)
    block_sparse_lists.lists_of.cache_clear()
    yield
    block_sparse_lists.lists_of.cache_clear()


def heads(n, count, b=1):
    return torch.randn(b, n, count, D).transpose(1, 2)


def dense(q, k, v, seen):
    """softmax(q·kᵀ / √d) v under a mask (b, h or 1, n, m), in fp64; no key: 0."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = (q.double() @ k.mT * D**-0.5).masked_fill(~seen, -1e30)
    weights = scores.softmax(-1) * seen
    return weights @ v, scores.logsumexp(-1).masked_fill(~seen.any(-1), -torch.inf)


def compare(out, expected, inputs, tolerance=2e-5):
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=tolerance)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


def ended(n, slots, span, stride):
    return torch.arange(slots) * stride + span - 1 <= torch.arange(n)[:, None]  # (n, slots)


def best_blocks(q, k, span, stride, block, selected):
    """The blocks of each query, from the tokens that slots and blocks share: sets, by (b, g, i)."""
    (b, h, n, _), (g, s) = q.shape, k.shape[1:3]
    seen = ended(n, s, span, stride)
    scores = q.double() @ k.double().repeat_interleave(h // g, 1).mT * D**-0.5
    p = scores.masked_fill(~seen, -1e30).softmax(-1).unflatten(1, (g, -1)).sum(2)  # (b, g, n, s)
    first, count = torch.arange(s)[:, None] * stride, -(-n // block)
    edge = torch.arange(count) * block
    shared = torch.minimum(first + span, edge + block) - torch.maximum(first, edge)
    weight = (p * seen) @ shared.clamp(min=0).double()  # (b, g, n, count)
    found = {}
    for row, head, i in ((r, a, i) for r in range(b) for a in range(g) for i in range(n)):
        own = i // block
        always = {0, own, max(0, own - 1)}
        rest = sorted(set(range(own + 1)) - always, key=lambda u: -weight[row, head, i, u])
        found[row, head, i] = always | set(rest[: selected - len(always)])
    return found


def sets(chosen, count):
    b, g, n, _ = chosen.shape
    places = ((r, a, i) for r in range(b) for a in range(g) for i in range(n))
    listed = {at: [int(u) for u in chosen[at] if u < count] for at in places}
    assert all(len(blocks) == len(set(blocks)) for blocks in listed.values())
    return {at: set(blocks) for at, blocks in listed.items()}


CHOICES = [
    # span, stride, block, selected, heads, key heads, n
    (8, 4, 16, 4, 4, 2, 120),
    (4, 4, 16, 5, 2, 2, 131),
    (9, 3, 12, 4, 3, 1, 100),
    (8, 4, 8, 4, 1, 1, 60),
    (8, 4, 8, 8, 2, 1, 150),
    (32, 16, 64, 3, 2, 1, 66),
]


@pytest.mark.parametrize("case", CHOICES, ids=str)
def test_the_heaviest_blocks_are_chosen(monkeypatch, case):
    span, stride, block, selected, h, g, n = case
    count, slots = -(-n // block), (n - span) // stride + 1
    monkeypatch.setattr(importance, "AT_ONCE", 2 * g * count * 64)  # queries in several groups
    q, k = heads(n, h, b=2), heads(slots, g, b=2)
    _, lse = dense(q, k, k, ended(n, slots, span, stride))
    settings = {"block": block, "each": block // stride, "selected": selected, "near": 2}
    wanted = best_blocks(q, k, span, stride, block, selected)
    shares = span // stride
    chosen = importance.choose_blocks(q, k, lse.float(), shares=shares, **settings)
    assert chosen.shape == (2, g, n, selected)
    assert sets(chosen, count) == wanted
    if shares > 1 and selected > 3:
        wrong = importance.choose_blocks(q, k, lse.float(), shares=1, **settings)
        assert sets(wrong, count) != wanted, "slots that end in the next block count there, too"


def random_choice(b, g, n, m, block, chosen):
    """The own block and some earlier ones; the number of blocks stands for none."""
    count, own = -(-m // block), (m - n + torch.arange(n))[:, None] // block
    weight, blocks = torch.rand(b, g, n, count), torch.arange(count)
    weight = weight.masked_fill(blocks > own, -1.0).masked_fill(blocks == own, 2.0)
    best, found = weight.topk(min(chosen, count), dim=-1)
    return found.masked_fill(best < 0, count)


def seen_keys(chosen, heads, m, block, start):
    j = torch.arange(m)
    held = ((j // block)[:, None] == chosen[..., None, :]).any(-1)  # (b, g, n, m)
    past = j <= start + torch.arange(chosen.shape[2])[:, None]
    return (held & past).repeat_interleave(heads // chosen.shape[1], 1)


SELECTIONS = [
    # b, heads, key heads, n, m, block, selected
    (2, 2, 2, 40, 40, 16, 2),
    (1, 6, 2, 36, 36, 16, 3),
    (1, 16, 1, 17, 70, 32, 2),
    (1, 1, 1, 1, 20, 16, 3),
]


@pytest.mark.parametrize("programs", [1, 1000], ids=["long", "short"])
@pytest.mark.parametrize("case", SELECTIONS, ids=str)
def test_selected_blocks_are_dense_attention_under_a_mask(monkeypatch, case, programs):
    monkeypatch.setattr(selected_lists, "PROGRAMS", programs)
    b, h, g, n, m, block, count = case
    given = [x.requires_grad_() for x in (heads(n, h, b), heads(m, g, b), heads(m, g, b))]
    chosen = random_choice(b, g, n, m, block, count)
    out = fused.fused_selected(*given, chosen, block=block, start=m - n)
    expected, _ = dense(*given, seen_keys(chosen, h, m, block, m - n))
    compare(out, expected, given)


def test_the_comparison_of_selected_blocks_bites():
    given = heads(40, 2), heads(40, 1), heads(40, 1)
    chosen = random_choice(1, 1, 40, 40, 16, 2)
    expected, _ = dense(*given, seen_keys(chosen, 2, 40, 16, 0))
    for broken in (
        fused.fused_selected(*given, chosen, block=16, start=1),
        fused.fused_selected(*given, chosen.roll(1, 2), block=16),
    ):
        assert not torch.allclose(broken.double(), expected, atol=1e-2)


def test_dropped_weights_are_zero_or_grow_and_gradients_follow():
    """Which weights fell is read off by values that are columns of the identity."""
    q, k, v = given = [
        x.requires_grad_() for x in (heads(32, 4, 2), heads(32, 2, 2), heads(32, 2, 2))
    ]
    chosen = random_choice(2, 2, 32, 32, 16, 2)
    seen = seen_keys(chosen, 4, 32, 16, 0)

    def dropped(v):
        torch.manual_seed(1)
        return fused.fused_selected(q, k, v, chosen, block=16, dropout=0.3)

    unit = torch.eye(32).view(32, 2, D).unbind(1)
    found = torch.cat([dropped(part.expand(2, 2, 32, D).contiguous()) for part in unit], -1)
    scores = q.double() @ k.double().repeat_interleave(2, 1).mT * D**-0.5
    full = scores.masked_fill(~seen, -torch.inf).softmax(-1)  # (b, h, n, m)
    kept = (found > 0).detach()
    wanted = torch.where(kept, full / 0.7, 0.0)
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=2e-5)
    assert abs(kept[seen].float().mean() - 0.7) < 0.05
    assert not torch.equal(kept[0, 0], kept[0, 1])
    assert not torch.equal(kept[0], kept[1])
    compare(dropped(v), wanted @ v.double().repeat_interleave(2, 1), given)


def test_lists_hold_every_pair_once():
    chosen = random_choice(2, 3, 50, 50, 8, 4)
    count = 7
    order, starts, cuts, owners, length = selected_lists.lists_of(chosen.int(), count, 16)
    taken, lists = [], 2 * 3 * count
    for segment, owner in enumerate(owners.tolist()):
        if owner == lists:
            continue
        first = int(starts[owner]) + (segment - int(cuts[owner])) * length
        last = min(first + length, int(starts[owner + 1]))
        assert first < last
        for pair in order[first:last].tolist():
            assert chosen.flatten()[pair] == owner % count
            assert pair // (50 * 4) == owner // count
            taken.append(pair)
    assert sorted(taken) == (chosen.flatten() < count).nonzero().flatten().tolist()


@pytest.mark.parametrize(("n", "span", "stride"), [(70, 8, 4), (45, 6, 3), (20, 1, 1)])
def test_slots_that_have_ended_are_read(n, span, stride):
    slots = (n - span) // stride + 1
    given = [x.requires_grad_() for x in (heads(n, 4), heads(slots, 2), heads(slots, 2))]
    out, lse = slots_module.attend_slots(*given, span=span, stride=stride)
    expected, total = dense(*given, ended(n, slots, span, stride))
    torch.testing.assert_close(lse.double(), total, rtol=0, atol=2e-5)
    compare(out, expected, given)
    early, _ = dense(*given, ended(n, slots, max(1, span - stride), stride))
    assert stride == 1 or not torch.allclose(out.double(), early, atol=1e-2)


def test_gated_branches_are_their_sum(monkeypatch):
    monkeypatch.setattr(gates, "can_fuse", lambda *given, **rules: True)
    logits = torch.randn(2, 21, 9).requires_grad_()
    branches = [x.requires_grad_() for x in (heads(21, 3, 2), heads(21, 3, 2), heads(21, 3, 2))]
    out = gates.gated_sum(logits, tuple(branches))
    share = logits.double().sigmoid().view(2, 21, 3, 3)
    expected = sum(share[:, :, a, :, None] * branches[a].transpose(1, 2) for a in range(3))
    compare(out, expected.flatten(2), [logits, *branches])
    swapped = gates.gated_sum(logits, (branches[1], branches[0], branches[2]))
    assert not torch.allclose(swapped.double(), expected.flatten(2), atol=1e-2)


@pytest.mark.parametrize(("h", "g", "biased"), [(3, 3, True), (4, 1, False)])
def test_heads_are_projections_side_by_side(h, g, biased):
    x = torch.randn(2, 45, 24)
    weights = torch.randn(h * D, 24), torch.randn(6 * g * D, 24)
    biases = (torch.randn(h * D), torch.randn(6 * g * D)) if biased else None
    given = [y.requires_grad_() for y in (x, *weights, *(biases or ()))]
    wide = [y.double() for y in given]
    q = (wide[0] @ wide[1].T + (wide[3] if biased else 0)).view(2, 45, h, D)
    rest = (wide[0] @ wide[2].T + (wide[4] if biased else 0)).view(2, 45, 6, g, D)
    wanted = [q, q, *rest.unbind(2)]
    found = heads_module.joint_heads(x, weights, biases, h, g)
    assert len(found) == len(wanted)
    # Gradients come in any memory order: some with the heads first, some with the tokens.
    each = [torch.randn(2, y.shape[1], 45, D) for y in found]
    for at in (0, 3, 6):
        each[at] = each[at].transpose(1, 2).contiguous().transpose(1, 2)
    each[2] = each[2].mT.contiguous().mT
    total = sum((y * up).sum() for y, up in zip(found, each, strict=True))
    truth = sum((y.transpose(1, 2) * up).sum() for y, up in zip(wanted, each, strict=True))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.transpose(1, 2), rtol=0, atol=2e-5)
    twin = torch.autograd.grad(
        truth - (q.transpose(1, 2) * each[1]).sum(), given, retain_graph=True
    )
    found, wanted = torch.autograd.grad(total, given), torch.autograd.grad(truth, given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-4)
    assert not torch.allclose(found[1], twin[1], atol=1e-2), "both gradients of q count"


ALL = (
    (nsa, "can_choose"),
    (selected, "can_fuse"),
    (gates, "can_fuse"),
    (nsa, "can_join"),
)


@pytest.mark.parametrize(
    ("h", "g", "able"), [(2, 2, ALL), (4, 1, ALL), (2, 1, ALL[:1])], ids=["alone", "shared", "part"]
)
def test_the_mixer_takes_the_kernels_where_it_can(monkeypatch, h, g, able):
    config = NSA(span=8, stride=4, block=16, selected=4, window=20)
    mixer = config.build(Frame(dim=D * h, heads=h, kv_heads=g, causal=True))
    x = torch.randn(1, 90, D * h, requires_grad=True)
    given = [x, *mixer.parameters()]
    plain = mixer(x)
    called = []
    for module, name in able:
        monkeypatch.setattr(module, name, lambda *_, name=name: called.append(name) or True)
    out = mixer(x)
    assert sorted(called) == sorted(name for _, name in able)
    compare(out, plain.double(), given, 2e-4)


def test_what_can_be_fused_is_said():
    q = torch.zeros(1, 2, 8, 64, dtype=torch.bfloat16)
    assert not fused.can_fuse(q, q, q, 64), "there is no GPU here"
    assert not importance.can_choose(q, q, 1)
    assert not gates.can_fuse((q, q, q))
