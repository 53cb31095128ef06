"""Pixels: the loss from the equation, ImageGPT with the same weights, hidden pixels."""

import math

import pytest
import torch
from objective_parts import VOCAB, rows, trunk
from torch import nn

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.metrics import bits
from weft.mixers import Frame
from weft.models import Decoder, Encoder, Stack
from weft.objectives import Batch, PixelLM, higher_is_better
from weft.objectives.pixel_lm import pixel_scores
from weft.training import score

DIM, HEADS, LENGTH = 16, 2, 9


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def built(objective):
    torch.manual_seed(0)
    model = objective.build(trunk()).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def by_hand(model, batch):
    total = count = right = 0
    for ids, valid in zip(batch.x, batch.valid, strict=True):
        seen = [VOCAB]
        for pixel in ids[valid].tolist():
            log = model(torch.tensor([seen]))[0, -1, :VOCAB].log_softmax(-1)
            total, count = total - log[pixel].item(), count + 1
            right += int(log.argmax() == pixel)
            seen.append(pixel)
    return total, count, right


def check(loss, truth):
    assert loss.total.item() == pytest.approx(truth[0], rel=1e-10)
    assert (int(loss.count), int(loss.right)) == truth[1:]


def test_every_pixel_after_those_before_it():
    model, batch = built(PixelLM()), rows()
    truth = by_hand(model, batch)
    check(PixelLM().loss(model, batch, generator()), truth)
    shifted = Batch(x=batch.x.roll(1, 1), valid=batch.valid)
    with pytest.raises(AssertionError):
        check(PixelLM().loss(model, shifted, generator()), truth)
    found = score(model, [batch], PixelLM())
    assert found.metric == "bits per pixel"
    assert found.score == pytest.approx(truth[0] / truth[1] / torch.tensor(2.0).log().item())
    assert not higher_is_better(found.metric)


def test_left_padding_counts_alike():
    model, batch = built(PixelLM()), rows()
    valid = batch.valid.flip(1)
    moved = torch.zeros_like(batch.x).masked_scatter_(valid, batch.x[batch.valid])
    check(PixelLM().loss(model, Batch(x=moved, valid=valid), generator()), by_hand(model, batch))


def test_hidden_pixels():
    objective, batch = PixelLM(kind="masked", rate=0.5), rows()
    model = built(objective)
    assert isinstance(model.config.trunk, Encoder)
    loss = objective.loss(model, batch, generator(2))
    chosen = (torch.rand(batch.x.shape, generator=generator(2)) < 0.5) & batch.valid
    log = model(batch.x.masked_fill(chosen, VOCAB), valid=batch.valid)[..., :VOCAB].log_softmax(-1)
    total = sum(-log[r, i, batch.x[r, i]].item() for r, i in chosen.nonzero().tolist())
    assert int(loss.count) == int(chosen.sum()) > 3
    assert loss.total.item() == pytest.approx(total, rel=1e-12)
    assert objective.metric == "accuracy"


def test_equals_imagegpt():
    transformers = pytest.importorskip("transformers", reason="parity with its implementation")
    config = transformers.ImageGPTConfig(
        vocab_size=VOCAB + 1,
        n_positions=LENGTH,
        n_embd=DIM,
        n_layer=2,
        n_head=HEADS,
        n_inner=24,
        activation_function="gelu",
        tie_word_embeddings=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    torch.manual_seed(0)
    theirs = transformers.ImageGPTForCausalImageModeling(config).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    ours = same_weights(theirs)
    ids = torch.randint(VOCAB, (3, LENGTH), generator=generator(1))
    shown = torch.cat((torch.full((3, 1), VOCAB), ids[:, :-1]), 1)
    logits = theirs(shown).logits  # (3, 9, colours)
    torch.testing.assert_close(pixel_scores(ours, shown, None), logits)
    loss = PixelLM().loss(ours, Batch(x=ids), generator())
    truth = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum")
    torch.testing.assert_close(loss.total, truth)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(pixel_scores(ours, ids, None), logits)


@torch.no_grad()
def same_weights(theirs):
    stack = Stack(
        frame=Frame(dim=DIM, heads=HEADS, length=LENGTH),
        order="sfsf",
        norm=Norm(kind="rms"),
        feedforward="dense(hidden=24)",
    )
    encoder = Encoder(embedding=Embedding(vocab=VOCAB, positions="learned"), stack=stack)
    made = PixelLM().build(encoder)
    assert isinstance(made.trunk, Decoder)
    ours, body = made.build().double().eval(), theirs.transformer
    ours.trunk.embedding.table.copy_(body.wte.weight)
    ours.trunk.embedding.positions.copy_(body.wpe.weight)
    ours.head[:VOCAB] = theirs.lm_head.weight  # the start is never predicted
    ours.trunk.stack.norm.weight.copy_(body.ln_f.weight)
    subs = ours.trunk.stack.sublayers
    for block, attention, feedforward in zip(body.h, subs[::2], subs[1::2], strict=True):
        attention.norm.weight.copy_(block.ln_1.weight)
        feedforward.norm.weight.copy_(block.ln_2.weight)
        project = attention.body.project
        for part, linear in enumerate((project.to_q, project.to_k, project.to_v)):
            own = slice(part * DIM, (part + 1) * DIM)
            linear.weight.copy_(block.attn.c_attn.weight[:, own].T)
            linear.bias.copy_(block.attn.c_attn.bias[own])
        project.to_out.weight.copy_(block.attn.c_proj.weight.T)
        project.to_out.bias.copy_(block.attn.c_proj.bias)
        linears = [m for m in feedforward.body.modules() if isinstance(m, nn.Linear)]
        for mine, their in zip(linears, (block.mlp.c_fc, block.mlp.c_proj), strict=True):
            mine.weight.copy_(their.weight.T)
            mine.bias.copy_(their.bias)
    return ours


def test_bad_settings_are_refused():
    with pytest.raises(WeftError, match="kind is one of"):
        PixelLM(kind="spiral")
    with pytest.raises(WeftError, match="rate is a share"):
        PixelLM(rate=0.0)
    with pytest.raises(WeftError, match="pixel_lm reads tokens"):
        PixelLM().build(trunk(vocab=None, channels=3))


def test_bits_per_dimension_are_nats_over_the_bytes_of_a_picture():
    objective = PixelLM(unit="dimension")
    model, batch = built(objective), rows()
    truth = by_hand(model, batch)
    found = score(model, [batch], objective)
    assert found.metric == "bits per dimension"
    assert found.score == pytest.approx(bits(truth[0], truth[1]), rel=1e-9)
    assert bits(math.log(256)) == pytest.approx(8.0)
    assert not higher_is_better(found.metric)


def test_pictures_are_read_behind_their_start():
    model, batch = built(PixelLM()), Batch(x=torch.tensor([[0, 1, 2], [3, 1, 0]]))
    assert PixelLM().read(model, batch).x.tolist() == [[VOCAB, 0, 1], [VOCAB, 3, 1]]
    assert PixelLM(kind="masked").read(model, batch) is batch
