"""Two streams against XLNet's own, and against the equations, pair by pair in float64."""

import dataclasses

import pytest
import torch
from objective_parts import VOCAB, rows, trunk
from torch import nn

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.positions import Alibi, Rope, Rope2d, T5Bias
from weft.mixers import Frame
from weft.models import Encoder, LanguageModel, Stack
from weft.objectives import Batch, PermutedLM
from weft.objectives.permuted_lm import permuted_scores
from weft.objectives.targets.permutation import Permutation, permutation, seen_at

DIM, HEADS, UNITS = 16, 2, 24


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def model_of(mixer="full", positions=None, added="sinusoidal", **stack):
    frame = Frame(dim=DIM, heads=HEADS, length=12, positions=positions)
    made = PermutedLM().build(
        Encoder(
            embedding=Embedding(vocab=VOCAB, positions=added),
            stack=Stack(frame=frame, order="sfsf", mixer=mixer, **stack),
        )
    )
    torch.manual_seed(0)
    model = made.build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def ragged():
    batch = rows()
    return batch.x, batch.valid


def ours_and_theirs():
    """XLNet with random weights, and the same weights in our places."""
    transformers = pytest.importorskip("transformers", reason="parity with its implementation")
    torch.manual_seed(0)
    theirs = transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(
            vocab_size=VOCAB + 1,
            d_model=DIM,
            n_layer=2,
            n_head=HEADS,
            d_inner=UNITS,
            ff_activation="gelu",
            layer_norm_eps=1e-5,
        )
    )
    theirs = theirs.eval()  # in float32, as its sines are
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        theirs.lm_loss.bias.zero_()
    stack = Stack(
        frame=Frame(dim=DIM, heads=HEADS),
        order="sfsf",
        mixer="transformer_xl",
        feedforward=f"dense(hidden={UNITS})",
        norm=Norm(place="post"),
    )
    trunk = Encoder(embedding=Embedding(vocab=VOCAB + 1), stack=stack)
    ours = LanguageModel(trunk=trunk).build().eval()
    ours.trunk.norm = nn.Identity()  # XLNet has no norm on its embedding
    copy_weights(ours, theirs)
    return ours, theirs


@torch.no_grad()
def copy_weights(ours, theirs):
    table = theirs.transformer.word_embedding.weight.clone()
    table[VOCAB] = theirs.transformer.mask_emb[0, 0]
    ours.trunk.embedding.table.copy_(table)
    for layer, (attention, feedforward) in zip(
        theirs.transformer.layer,
        zip(ours.trunk.stack.sublayers[::2], ours.trunk.stack.sublayers[1::2], strict=True),
        strict=True,
    ):
        body, other = attention.body, layer.rel_attn
        for name in "qkv":
            linear = getattr(body.project, f"to_{name}")
            linear.weight.copy_(getattr(other, name).reshape(DIM, -1).T)
            linear.bias.zero_()
        body.project.to_out.weight.copy_(other.o.reshape(DIM, -1))
        body.project.to_out.bias.zero_()
        body.to_r.weight.copy_(other.r.reshape(DIM, -1).T)
        body.content_bias.copy_(other.r_w_bias)
        body.distance_bias.copy_(other.r_r_bias)
        attention.norm.load_state_dict(other.layer_norm.state_dict())
        feedforward.norm.load_state_dict(layer.ff.layer_norm.state_dict())
        linears = [m for m in feedforward.body.modules() if isinstance(m, nn.Linear)]
        for mine, their in zip(linears, (layer.ff.layer_1, layer.ff.layer_2), strict=True):
            mine.load_state_dict(their.state_dict())


def xlnet_scores(theirs, ids, valid, order):
    """Their scores of the tail, divided by √c as tied scores are here."""
    rank = order.rank
    hidden = (rank[:, None, :] >= rank[:, :, None]).float()  # content reads itself all the same
    mapping = torch.zeros(*order.tail.shape, ids.shape[1])
    mapping.scatter_(2, order.tail[..., None], 1.0)
    found = theirs(
        ids, attention_mask=valid.float(), perm_mask=hidden, target_mapping=mapping
    ).logits
    return found * DIM**-0.5


def check_xlnet(ours, theirs, ids, valid, order):
    # Theirs reads padding where nothing is known; the start of queries is no token of theirs.
    some = order.real & (order.tail_rank > 0)
    mine = permuted_scores(ours, ids, valid, order)[some][:, :VOCAB]
    their = xlnet_scores(theirs, ids, valid, order)[some][:, :VOCAB]
    assert len(mine) > 5
    torch.testing.assert_close(mine, their, rtol=1e-4, atol=1e-5)


def test_equals_xlnet():
    ours, theirs = ours_and_theirs()
    ids, valid = ragged()
    order = permutation(valid, 0.5, generator(3))
    check_xlnet(ours, theirs, ids, valid, order)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_wrong_mask_would_be_found(shift, monkeypatch):
    """Rows that know one token more than they may, or one less."""
    ours, theirs = ours_and_theirs()
    ids, valid = ragged()
    order = permutation(valid, 0.5, generator(3))

    def broken(level, *others):
        return seen_at(level + shift, *others)

    monkeypatch.setattr("weft.objectives.permuted_lm.seen_at", broken)
    with pytest.raises(AssertionError):
        check_xlnet(ours, theirs, ids, valid, order)


def literal(model, ids, order):
    """Two streams as the paper writes them, for one row without padding: (p, vocab)."""
    trunk, rank, tail = model.trunk, order.rank[0], order.tail[0]
    at = torch.arange(len(ids))
    h = trunk.enter(trunk.embedding(ids[None]))  # (1, n, c)
    g = trunk.enter(trunk.embedding(torch.full_like(ids, VOCAB)[None])[:, tail])  # (1, p, c)
    for sub in trunk.stack.sublayers:
        if sub.letter == "s":
            new_h = attended(sub, h, h, rank[:, None] >= rank[None, :], at, at)
            new_g = attended(sub, g, h, rank[tail][:, None] > rank[None, :], tail, at)
            h, g = sub.join(h, new_h), sub.join(g, new_g)
        else:
            h, g = (sub.join(x, sub.body(sub.norm(x) if sub.pre else x)) for x in (h, g))
    return model.scores(trunk.stack.norm(g))[0]


def attended(sub, x, context, seen, i, j):
    """Queries x (1, n, c) at i, keys of the context (1, m, c) at j, pair by pair."""
    body = sub.body
    x, context = (sub.norm(y) if sub.pre else y for y in (x, context))
    q = body.positions.rotate(body.project.q(x), i)[0]  # (h, n, d)
    k = body.positions.rotate(body.project.k(context), j)[0]
    v = body.project.v(context)[0]
    out = torch.zeros_like(q)
    for head in range(len(q)):
        for a in range(len(i)):
            read = [b for b in range(len(j)) if seen[a, b] and body.pattern.sees(i[a], j[b])]
            if not read:
                continue
            scores = q[head, a] @ k[head, read].T * q.shape[-1] ** -0.5
            if body.positions.biased:
                scores = scores + body.positions.at(torch.tensor(head), i[a], j[read])
            out[head, a] = scores.softmax(-1) @ v[head, read]
    return body.project.out(out[None])


CASES = {
    "sinusoidal": {},
    "learned, after the sum": {"added": "learned", "norm": Norm(place="post")},
    "rope": {"positions": Rope(), "added": "none"},
    "alibi": {"positions": Alibi(), "added": "none"},
    "t5": {"positions": T5Bias(buckets=8, max_distance=10), "added": "none"},
    "window": {"mixer": "sliding_window(window=4)"},
    "checkpointed": {"recompute": "checkpoint"},
}


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_streams_are_those_of_the_paper(case):
    model = model_of(**CASES[case])
    ids, valid = ragged()
    order = permutation(valid, 0.4, generator(1))
    found = permuted_scores(model, ids, valid, order)
    for row in range(len(ids)):
        length = int(valid[row].sum())
        own = Permutation(*(part[row : row + 1] for part in order))
        own = own._replace(rank=own.rank[:, :length], tail=own.tail[:, own.real[0]])
        torch.testing.assert_close(
            found[row, order.real[row]], literal(model, ids[row, :length], own)
        )


def test_padding_may_stand_anywhere():
    model = model_of()
    ids, valid = ragged()
    order = permutation(valid, 0.4, generator(1))
    found = permuted_scores(model, ids, valid, order)[order.real]
    flip = torch.arange(ids.shape[1] - 1, -1, -1)
    left = [(0 * x).masked_scatter_(valid[:, flip], x[valid]) for x in (ids, order.rank)]
    tail = order.tail + (ids.shape[1] - valid.sum(1, keepdim=True))
    moved = order._replace(rank=left[1], tail=tail.clamp(max=ids.shape[1] - 1))
    again = permuted_scores(model, left[0], valid[:, flip], moved)[order.real]
    torch.testing.assert_close(again, found)


def test_no_query_knows_what_comes_later():
    """Bitwise: the token itself and all after it in the order change nothing."""
    model = model_of()
    ids = torch.arange(9)[None] % VOCAB
    order = permutation(torch.ones_like(ids, dtype=torch.bool), 0.5, generator(2))
    before = permuted_scores(model, ids, None, order)[0]
    for j in range(9):
        changed = ids.clone()
        changed[0, j] = (changed[0, j] + 1) % VOCAB
        moved = (permuted_scores(model, changed, None, order)[0] != before).any(-1)
        assert torch.equal(moved, order.tail_rank[0] > order.rank[0, j])


def test_the_order_holds_every_token_once_and_its_tail_is_the_end():
    _, valid = ragged()
    order = permutation(valid, 0.4, generator(5))
    for row, count in enumerate(valid.sum(1).tolist()):
        assert sorted(order.rank[row, valid[row]].tolist()) == list(range(count))
        tail = order.tail_rank[row, order.real[row]].tolist()
        predicted = max(1, int(count * 0.4 + 0.5))
        assert tail == list(range(count - predicted, count))


def test_orders_are_even():
    """Each token is predicted as often as any other."""
    valid = torch.ones(6000, 5, dtype=torch.bool)
    tail = permutation(valid, 0.2, generator(0)).tail
    shares = torch.bincount(tail.flatten(), minlength=5) / len(valid)
    assert shares.sub(0.2).abs().max() < 0.02


def test_the_loss_is_the_sum_over_the_tail():
    objective, batch = PermutedLM(share=0.4), rows()
    model = model_of()
    loss = objective.loss(model, batch, generator(7))
    order = permutation(batch.valid, 0.4, generator(7))
    log = permuted_scores(model, batch.x, batch.valid, order).log_softmax(-1)
    total = count = 0
    for row, place in order.real.nonzero().tolist():
        total -= log[row, place, batch.x[row, order.tail[row, place]]].item()
        count += 1
    assert int(loss.count) == count
    assert loss.total.item() == pytest.approx(total, rel=1e-12)


def test_a_row_without_tokens_is_no_loss():
    batch = Batch(x=torch.zeros(1, 3, dtype=torch.long), valid=torch.zeros(1, 3, dtype=torch.bool))
    loss = PermutedLM().loss(model_of(), batch, generator())
    assert (loss.total.item(), int(loss.count)) == (0.0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mixer": "performer"}, "not bidirectional attention over freely chosen pairs"),
        ({"mixer": "longformer(window=3)"}, "not bidirectional attention over freely chosen pairs"),
        ({"positions": Rope2d(width=3), "added": "none"}, "rope2d"),
        ({"depth": "universal(steps=2)"}, "universal"),
    ],
    ids=["performer", "longformer", "rope2d", "universal"],
)
def test_what_cannot_be_masked_says_so(change, reason):
    with pytest.raises(Unsupported, match=reason):
        PermutedLM().loss(model_of(**change), rows(), generator())


def test_registers_are_refused():
    made = PermutedLM().build(trunk(registers=1)).build().double()
    with pytest.raises(Unsupported, match="registers read all tokens"):
        PermutedLM().loss(made, rows(), generator())


def test_bad_settings_are_refused():
    with pytest.raises(WeftError, match="share is a part"):
        PermutedLM(share=0.0)
    assert dataclasses.replace(PermutedLM(), share=1.0).share == 1.0
