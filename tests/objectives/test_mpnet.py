"""MPNet: the masks of the paper's example, both streams literally, and Transformers' encoder."""

import pytest
import torch
from objective_parts import VOCAB, rows, trunk
from torch import nn

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.positions import T5Bias
from weft.mixers import Frame
from weft.models import Encoder, LanguageModel, Stack
from weft.objectives import Batch, MPNet
from weft.objectives.masked_lm import Hidden, disguised
from weft.objectives.mpnet import mpnet_scores, mpnet_seen
from weft.objectives.targets.permutation import Permutation, permutation, seen_at

DIM, HEADS, UNITS, LENGTH = 16, 2, 24, 20


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def example():
    """n = 6, order (1, 3, 5 | 4, 6, 2), of which three are predicted; tokens count from 0 here."""
    order = torch.tensor([[0, 2, 4, 3, 5, 1]])
    return Permutation(
        rank=order.argsort(1),
        tail=order[:, 3:],
        real=torch.ones(1, 3, dtype=torch.bool),
        known=torch.tensor([3]),
    )


# Columns x1 x3 x5 | x4 x6 x2 | m4 m6 m2.
QUERIES = {4: "111000111", 6: "111100011", 2: "111110001"}
CONTENT = {
    "x1": "111000111",
    "x3": "111000111",
    "x5": "111000111",
    "x4": "111100011",
    "x6": "111110001",
    "x2": "111111000",
    "m4": "111000111",
    "m6": "111000111",
    "m2": "111000111",
}


def check_example(seen):
    """The rows and columns of the table, from tensors in the order of the text."""
    columns = [0, 2, 4, 3, 5, 1, 6, 7, 8]  # x1 x3 x5 x4 x6 x2 m4 m6 m2
    shown = ["".join(str(int(v)) for v in row) for row in seen[0][:, columns].int()]
    by_name = {name: shown[columns[place]] for place, name in enumerate(CONTENT)}
    assert by_name == CONTENT
    assert dict(zip(QUERIES, shown[9:], strict=True)) == QUERIES
    assert not seen[0, :, 9:].any()  # no one reads a query
    assert (seen[0].sum(1) == 6).all()


def test_the_masks_of_the_worked_example():
    check_example(mpnet_seen(example(), torch.ones(1, 6, dtype=torch.bool)))


@pytest.mark.parametrize("shift", [1, -1])
def test_other_masks_would_be_found(shift, monkeypatch):
    monkeypatch.setattr(
        "weft.objectives.mpnet.seen_at", lambda level, *others: seen_at(level + shift, *others)
    )
    with pytest.raises(AssertionError):
        check_example(mpnet_seen(example(), torch.ones(1, 6, dtype=torch.bool)))


def test_every_row_sees_as_many_places_as_the_text_has():
    valid = rows().valid
    order = permutation(valid, 0.4, generator(4))
    n, p = valid.shape[1], order.tail.shape[1]
    seen = mpnet_seen(order, valid)
    there = torch.cat((valid, order.real, order.real), 1)
    counts = seen.sum(2)[there]
    assert torch.equal(counts, valid.sum(1)[:, None].expand(-1, n + 2 * p)[there])


def model_of(**stack):
    frame = Frame(dim=DIM, heads=HEADS, length=LENGTH, positions=T5Bias(buckets=8, max_distance=10))
    made = MPNet().build(
        Encoder(
            embedding=Embedding(vocab=VOCAB, positions="learned"),
            stack=Stack(frame=frame, order="sfsf", norm=Norm(place="post"), **stack),
        )
    )
    torch.manual_seed(0)
    model = made.build().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def literal(model, ids, shown, order, share):
    """One row without padding, in the order of the paper: [x_z, M_z>c] and queries M_z>c."""
    trunk, z = model.trunk, order.rank[0].argsort()
    n, p = len(ids), order.tail.shape[1]
    c = n - p
    at = torch.cat((z, z[c:]))  # places of the content
    x, m = (trunk.enter(trunk.embedding(t[None]))[0] for t in (ids, shown))
    h, g = torch.cat((x[z], m[z[c:]])), m[z[c:]]
    lower, upper = torch.ones(p, p).tril().bool(), torch.ones(p, p).triu().bool()
    all_c, no_p, all_p = torch.ones(p, c).bool(), torch.zeros(p, p).bool(), torch.ones(p, p).bool()
    given = torch.cat(
        (torch.ones(c, c).bool(), torch.zeros(c, p).bool(), torch.ones(c, p).bool()), 1
    )
    predicted = torch.cat((all_c, lower, upper & ~torch.eye(p).bool()), 1)
    masks = torch.cat((all_c, no_p, all_p), 1)
    content_sees = torch.cat((given, predicted, masks))
    query_sees = torch.cat((all_c, lower & ~torch.eye(p).bool(), upper), 1)
    for sub in trunk.stack.sublayers:
        if sub.letter == "s":
            new_h = attended(sub.body, h, h, content_sees, at, at)
            new_g = attended(sub.body, g, h, query_sees, z[c:], at)
            h, g = sub.norm(h + new_h), sub.norm(g + new_g)
        else:
            h, g = (sub.norm(y + sub.body(y[None])[0]) for y in (h, g))
    return model.scores(g)


def attended(body, x, context, seen, i, j):
    project = body.project
    q, k, v = project.q(x[None])[0], project.k(context[None])[0], project.v(context[None])[0]
    out = torch.zeros_like(q)
    for head in range(len(q)):
        bias = body.positions.table[body.positions.bucket(j[None, :] - i[:, None]), head]
        scores = q[head] @ k[head].T * q.shape[-1] ** -0.5 + bias
        out[head] = scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v[head]
    return project.out(out[None])[0]


def test_streams_are_those_of_the_paper():
    model, batch = model_of(), rows()
    order = permutation(batch.valid, 0.4, generator(1))
    shown = disguised(batch.x, Hidden(VOCAB, VOCAB + 1), 0.8, 0.1, generator(2))
    found = mpnet_scores(model, batch.x, shown, batch.valid, order)
    for row in range(len(batch)):
        n = int(batch.valid[row].sum())
        own = Permutation(*(part[row : row + 1] for part in order))
        own = own._replace(rank=own.rank[:, :n], tail=own.tail[:, own.real[0]])
        truth = literal(model, batch.x[row, :n], shown[row, :n], own, 0.4)
        torch.testing.assert_close(found[row, order.real[row]], truth)


def test_the_loss_is_the_sum_over_the_tail():
    objective, batch, model = MPNet(share=0.4), rows(), model_of()
    loss = objective.loss(model, batch, generator(7))
    draw = generator(7)
    order = permutation(batch.valid, 0.4, draw)
    shown = disguised(batch.x, Hidden(VOCAB, VOCAB + 1), 0.8, 0.1, draw)
    log = mpnet_scores(model, batch.x, shown, batch.valid, order).log_softmax(-1)
    total = sum(
        -log[row, place, batch.x[row, order.tail[row, place]]].item()
        for row, place in order.real.nonzero().tolist()
    )
    assert int(loss.count) == int(order.real.sum()) > 5
    assert loss.total.item() == pytest.approx(total, rel=1e-12)


def test_the_fine_tuned_encoder_is_theirs():
    transformers = pytest.importorskip("transformers", reason="parity with its implementation")
    torch.manual_seed(0)
    theirs = transformers.MPNetForMaskedLM(
        transformers.MPNetConfig(
            vocab_size=VOCAB + 2,
            hidden_size=DIM,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=UNITS,
            max_position_embeddings=LENGTH + 2,
            layer_norm_eps=1e-5,
            pad_token_id=1,
        )
    )
    theirs = theirs.double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    ours = same_weights(theirs)
    ids = torch.tensor([[2, 5, 6, 7, 8, 3, 4], [8, 2, 3, 3, 0, 0, 0]])  # 1 pads theirs
    valid = torch.tensor([[1] * 7, [1] * 4 + [0] * 3]).bool()
    hidden = ours.trunk(ids, valid=valid)
    other = theirs(
        torch.where(valid, ids, 1), attention_mask=valid.long(), output_hidden_states=True
    )
    torch.testing.assert_close(hidden[valid], other.hidden_states[-1][valid])
    torch.testing.assert_close(theirs.lm_head(hidden)[valid], other.logits[valid])
    with torch.no_grad():
        ours.trunk.embedding.positions.copy_(ours.trunk.embedding.positions.roll(1, 0))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(ours.trunk(ids, valid=valid)[valid], hidden[valid])


@torch.no_grad()
def same_weights(theirs):
    frame = Frame(dim=DIM, heads=HEADS, length=LENGTH, positions=T5Bias())
    stack = Stack(
        frame=frame, order="sfsf", norm=Norm(place="post"), feedforward=f"dense(hidden={UNITS})"
    )
    trunk = Encoder(embedding=Embedding(vocab=VOCAB + 2, positions="learned"), stack=stack)
    ours = LanguageModel(trunk=trunk).build().double().eval()
    mpnet = theirs.mpnet
    ours.trunk.embedding.table.copy_(mpnet.embeddings.word_embeddings.weight)
    # Their positions count from 2, behind that of padding.
    ours.trunk.embedding.positions.copy_(mpnet.embeddings.position_embeddings.weight[2:])
    ours.trunk.norm.load_state_dict(mpnet.embeddings.LayerNorm.state_dict())
    subs = ours.trunk.stack.sublayers
    for layer, attention, feedforward in zip(
        mpnet.encoder.layer, subs[::2], subs[1::2], strict=True
    ):
        for name, other in (("q", "q"), ("k", "k"), ("v", "v"), ("out", "o")):
            linear = getattr(attention.body.project, f"to_{name}")
            linear.load_state_dict(getattr(layer.attention.attn, other).state_dict())
        attention.body.positions.table.copy_(mpnet.encoder.relative_attention_bias.weight)
        attention.norm.load_state_dict(layer.attention.LayerNorm.state_dict())
        feedforward.norm.load_state_dict(layer.output.LayerNorm.state_dict())
        linears = [m for m in feedforward.body.modules() if isinstance(m, nn.Linear)]
        for mine, their in zip(
            linears, (layer.intermediate.dense, layer.output.dense), strict=True
        ):
            mine.load_state_dict(their.state_dict())
    return ours


def test_whole_words_are_ordered_and_the_tail_is_shuffled():
    """Words of two and three tokens: whole in front; behind, in any order."""
    numbers = torch.tensor([[0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 0, 0]]).expand(400, -1)
    valid = torch.arange(12).expand(400, -1) < 10
    order = permutation(valid, 0.4, generator(0), numbers)
    assert (order.known == 6).all()
    split, mixed = 0, 0
    for row in range(400):
        places = order.rank[row, :10].argsort().tolist()
        assert sorted(places) == list(range(10))
        front = [numbers[row, place].item() for place in places[:6]]
        runs = [word for i, word in enumerate(front) if i == 0 or front[i - 1] != word]
        assert len(runs) == len(set(runs)), "a word stands together"
        for word in set(front[:-1]) - {front[-1]}:
            assert front.count(word) == (3 if word in (1, 3) else 2), "and whole"
        split += front[-1] in {numbers[row, place].item() for place in places[6:]}
        tail = order.tail[row][order.real[row]].tolist()
        assert tail == places[6:]
        mixed += tail != sorted(tail)
    assert 0 < split < 400
    assert mixed > 300
    firsts = torch.bincount(order.rank[:, :10].argmin(1), minlength=10) / 400
    starts = firsts[[0, 2, 5, 7]]  # in front stands the first token of a word
    assert starts.sum().item() == pytest.approx(1.0)
    assert (starts - 0.25).abs().max() < 0.1


def test_words_of_the_loss():
    ids = torch.tensor([list(b"one two, three four")])
    objective = MPNet(share=0.3, words="bytes")
    torch.manual_seed(0)
    model = objective.build(trunk(vocab=256)).build()
    loss = objective.loss(model, Batch(x=ids), generator())
    assert int(loss.count) == 6
    assert torch.isfinite(loss.total)


def test_bad_settings_are_refused():
    with pytest.raises(WeftError, match="share is a part"):
        MPNet(share=1.5)
    with pytest.raises(WeftError, match="at most 1 in sum"):
        MPNet(masked=0.9, random=0.2)
    with pytest.raises(WeftError, match="mpnet reads tokens"):
        MPNet().build(trunk(vocab=None, channels=2))
