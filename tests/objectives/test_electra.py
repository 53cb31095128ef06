"""ELECTRA: the losses from the equation, what is drawn, gradients, and Transformers' heads."""

import pytest
import torch
import torch.nn.functional as F
from objective_parts import VOCAB, pairs, rows, trunk
from torch import nn

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.mixers import Frame
from weft.models import Encoder, Stack, load, save
from weft.objectives import ElectraObjective
from weft.objectives.electra import drawn

MASK = VOCAB


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(objective=ElectraObjective(share=0.5)):  # noqa: B008  # an immutable value
    torch.manual_seed(0)
    model = objective.build(trunk()).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def by_hand(model, objective, batch, seed):
    draw, total, count, right = generator(seed), 0.0, 0, 0
    chosen = (torch.rand(batch.x.shape, generator=draw) < objective.rate) & batch.valid
    scores = model.fill(batch.x.masked_fill(chosen, MASK), valid=batch.valid)
    tokens = drawn(scores, draw)
    for row in range(len(batch)):
        shown = batch.x[row].clone()
        for place in chosen[row].nonzero().flatten().tolist():
            log = scores[row, place].log_softmax(-1)
            total -= log[batch.x[row, place]].item() / objective.rate
            shown[place] = tokens[row, place]
        real = batch.valid[row]
        verdict = model(shown[real][None])[0]
        for place, logit in zip(real.nonzero().flatten().tolist(), verdict, strict=True):
            replaced = bool(shown[place] != batch.x[row, place])
            chance = torch.sigmoid(logit)
            total -= objective.weight * torch.log(chance if replaced else 1 - chance).item()
            right += int(bool(logit > 0) == replaced)
            count += 1
    return total, count, right


def test_both_losses_from_the_equation():
    objective, batch = ElectraObjective(rate=0.5, share=0.5), rows()
    model = built(objective)
    loss = objective.loss(model, batch, generator(3))
    total, count, right = by_hand(model, objective, batch, 3)
    assert (int(loss.count), int(loss.right)) == (count, right)
    assert loss.total.item() == pytest.approx(total, rel=1e-9)
    lighter = ElectraObjective(rate=0.5, share=0.5, weight=49.0).loss(model, batch, generator(3))
    assert lighter.total.item() != pytest.approx(total, rel=1e-3)


def test_a_true_token_that_is_drawn_counts_as_original():
    """A generator that is always right leaves nothing replaced."""
    objective, batch, model = ElectraObjective(rate=0.5, share=0.5), rows(), built()
    truth = F.one_hot(batch.x, VOCAB + 1).double() * 1e6
    model.fill = lambda ids, valid=None: truth
    seen = {}

    def forward(ids, *, valid=None):
        seen["ids"] = ids
        return torch.full(ids.shape, -50.0, dtype=torch.float64)

    model.forward = forward
    loss = objective.loss(model, batch, generator())
    assert torch.equal(seen["ids"], batch.x)
    assert int(loss.right) == int(loss.count) == int(batch.valid.sum())
    assert loss.total.item() == pytest.approx(0.0, abs=1e-9)


def test_draws_follow_the_distribution_and_never_are_masks():
    chances = torch.tensor([0.5, 0.25, 0.125, 0.125])
    scores = torch.cat((chances.log(), torch.tensor([9.0]))).expand(1, 20_000, 5)
    tokens = drawn(scores, generator())
    shares = torch.bincount(tokens.flatten(), minlength=5) / 20_000
    assert (shares[:4] - chances).abs().max() < 0.015
    assert shares[4] == 0


def test_no_gradient_passes_through_the_drawing():
    """The generator learns from its own loss alone: with weight or without."""
    batch, model = rows(), built()
    grads = []
    for weight in (0.0, 50.0):
        model.zero_grad()
        ElectraObjective(rate=0.5, share=0.5, weight=weight).loss(
            model, batch, generator(3)
        ).total.backward()
        grads.append(
            [p.grad.clone() for p in (*model.generator.parameters(), *model.narrow.parameters())]
        )
    for one, two in zip(*grads, strict=True):
        assert torch.equal(one, two)
    assert any(one.any() for one in grads[0])
    head = model.head[0].weight
    assert head.grad.any()


def test_the_embedding_learns_from_both():
    batch, model = rows(), built()
    found = {}
    for weight in (0.0, 50.0):
        model.zero_grad()
        ElectraObjective(rate=0.5, share=0.5, weight=weight).loss(
            model, batch, generator(3)
        ).total.backward()
        found[weight] = model.trunk.embedding.table.grad.clone()
    assert found[0.0].any()
    assert not torch.equal(found[0.0], found[50.0])


def test_both_documents_of_a_pair():
    objective, batch, model = ElectraObjective(share=0.5), pairs(), built()
    loss = objective.loss(model, batch, generator())
    assert int(loss.count) == int(batch.valid.sum() + batch.second_valid.sum())


def test_the_heads_are_theirs():
    electra = pytest.importorskip(
        "transformers.models.electra.modeling_electra", reason="parity with its implementation"
    )
    config = electra.ElectraConfig(hidden_size=8, embedding_size=8, layer_norm_eps=1e-5)
    model = built()
    judge = electra.ElectraDiscriminatorPredictions(config).double()
    judge.dense.load_state_dict(model.head[0].state_dict())
    judge.dense_prediction.load_state_dict(model.head[2].state_dict())
    hidden = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.testing.assert_close(model.head(hidden).squeeze(-1), judge(hidden))
    small = electra.ElectraConfig(hidden_size=4, embedding_size=8, layer_norm_eps=1e-5)
    filler = electra.ElectraGeneratorPredictions(small).double()
    filler.dense.load_state_dict(model.widen[0].state_dict())
    filler.LayerNorm.load_state_dict(model.widen[2].state_dict())
    narrow = torch.randn(2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(model.widen(narrow), filler(narrow))


def test_the_discriminator_and_its_loss_are_theirs():
    electra = pytest.importorskip(
        "transformers.models.electra.modeling_electra", reason="parity with its implementation"
    )
    config = electra.ElectraConfig(
        vocab_size=VOCAB + 1,
        hidden_size=8,
        embedding_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=20,
        layer_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    theirs = electra.ElectraForPreTraining(config).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.4 * torch.randn_like(parameter))
    objective, batch = ElectraObjective(rate=0.5, share=0.5, weight=1.0), rows()
    ours, shown = same_weights(objective, theirs), {}
    ours.trunk.register_forward_pre_hook(lambda module, args: shown.update(ids=args[0]))
    judged = objective.loss(ours, batch, generator(3))
    filled = ElectraObjective(rate=0.5, share=0.5, weight=0.0).loss(ours, batch, generator(3))
    replaced = shown["ids"] != batch.x
    assert replaced.any()
    found = theirs(shown["ids"], attention_mask=batch.valid.long(), labels=replaced.long())
    real = batch.valid
    torch.testing.assert_close(ours(shown["ids"], valid=real)[real], found.logits[real])
    mean = ((judged.total - filled.total) / judged.count).item()
    assert mean == pytest.approx(found.loss.item(), rel=1e-5)  # theirs is taken in float32


@torch.no_grad()
def same_weights(objective, theirs):
    frame = Frame(dim=8, heads=2, length=20)
    stack = Stack(frame=frame, order="sf", norm=Norm(place="post"), feedforward="dense(hidden=12)")
    encoder = Encoder(embedding=Embedding(vocab=VOCAB, positions="learned"), stack=stack)
    ours = objective.build(encoder).build().double().eval()
    embeddings, trunk = theirs.electra.embeddings, ours.trunk
    trunk.embedding.table.copy_(embeddings.word_embeddings.weight)
    kinds = embeddings.token_type_embeddings.weight[0]  # all tokens are of one kind
    trunk.embedding.positions.copy_(embeddings.position_embeddings.weight + kinds)
    trunk.norm.load_state_dict(embeddings.LayerNorm.state_dict())
    (layer,), (attention, feedforward) = theirs.electra.encoder.layer, trunk.stack.sublayers
    for name, linear in (
        ("to_q", layer.attention.self.query),
        ("to_k", layer.attention.self.key),
        ("to_v", layer.attention.self.value),
        ("to_out", layer.attention.output.dense),
    ):
        getattr(attention.body.project, name).load_state_dict(linear.state_dict())
    attention.norm.load_state_dict(layer.attention.output.LayerNorm.state_dict())
    feedforward.norm.load_state_dict(layer.output.LayerNorm.state_dict())
    linears = [m for m in feedforward.body.modules() if isinstance(m, nn.Linear)]
    for mine, their in zip(linears, (layer.intermediate.dense, layer.output.dense), strict=True):
        mine.load_state_dict(their.state_dict())
    ours.head[0].load_state_dict(theirs.discriminator_predictions.dense.state_dict())
    ours.head[2].load_state_dict(theirs.discriminator_predictions.dense_prediction.state_dict())
    return ours


def test_saved_and_loaded(tmp_path):
    model, batch = built(), rows()
    again = load(save(model, tmp_path / "model"))
    assert torch.equal(again(batch.x), model.eval()(batch.x))
    assert torch.equal(again.fill(batch.x), model.fill(batch.x))


def test_bad_settings_are_refused():
    with pytest.raises(WeftError, match="rate is a share"):
        ElectraObjective(rate=0.0)
    with pytest.raises(WeftError, match="share is a part"):
        ElectraObjective(share=2.0).build(trunk())
    with pytest.raises(WeftError, match="electra reads tokens"):
        ElectraObjective().build(trunk(vocab=None, channels=2))
