"""Every registered mixer works in a model, and every one that streams generates."""

import copy

import pytest
import torch
from model_parts import VOCAB, assert_same, built, ids, lively, normal
from test_reversible import two_streams

from weft.errors import Unsupported
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Classifier, Decoder, Encoder, LanguageModel, Stack
from weft.models.stack.sublayer import StackInputs
from weft.testing.cases import small

EMBEDDING = Embedding(vocab=VOCAB, positions="sinusoidal", registers=1)
CAUSAL = [name for name in MIXERS if small(MIXERS[name]).traits.causal]
STREAMING = [name for name in CAUSAL if small(MIXERS[name]).traits.state is not None]


def trunk(name, kind, **settings):
    frame = Frame(dim=32, heads=4, length=64)
    stack = Stack(frame=frame, order="sfsf", mixer=small(MIXERS[name]), **settings)
    return kind(embedding=EMBEDDING, stack=stack)


@pytest.mark.parametrize("name", list(MIXERS))
def test_classifies_padded_documents_as_each_alone(name):
    kind = Encoder if small(MIXERS[name]).traits.bidirectional else Decoder
    torch.manual_seed(0)
    model = Classifier(trunk=trunk(name, kind), classes=3).build().double().eval()
    x = ids(3, 21)
    valid = torch.ones(3, 21, dtype=torch.bool)
    valid[1, :9] = False
    valid[2, [2, 3, 11, 19, 20]] = False
    scores = model(x, valid=valid)
    assert scores.shape == (3, 3)
    for row in range(3):
        alone = model(x[row][valid[row]][None])[0]
        torch.testing.assert_close(scores[row], alone, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", list(MIXERS))
@pytest.mark.parametrize("recompute", ["checkpoint", "reversible"])
def test_recomputing_gives_the_gradients_of_storing(name, recompute):
    kind = Encoder if small(MIXERS[name]).traits.bidirectional else Decoder
    model = built(trunk(name, kind, recompute=recompute, dropout=0.1)).stack
    x, valid = normal(2, 19, 32), torch.ones(2, 19, dtype=torch.bool)
    valid[1, [0, 5, 6]] = False
    torch.manual_seed(1)
    again = trained(copy.deepcopy(model), lambda m: m(x, valid=valid))
    plain = one_stream if recompute == "checkpoint" else two_streams
    torch.manual_seed(1)
    stored = trained(model, lambda m: plain(m, x, StackInputs(valid)))
    assert_same(again, stored, rtol=1e-8, atol=1e-9)
    assert sum(grad.abs().sum() for grad in stored.values()) > 0


def one_stream(module, x, given):
    for sublayer in module.sublayers:
        x = sublayer(x, given)
    return module.norm(x)


def trained(module, forward) -> dict:
    """Gradients and buffers after one backward."""
    forward(module).square().sum().backward()
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return grads | {name: b.double() for name, b in module.named_buffers()}


@pytest.mark.parametrize("name", STREAMING)
def test_greedy_text_equals_repeated_forward(name):
    model = lively(LanguageModel(trunk=trunk(name, Decoder), tied=False)).eval()
    got = model.generate(ids(2, 13), 9)
    row = ids(2, 13)
    for _ in range(9):
        row = torch.cat((row, model(row)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(got, row)
    scores = model(row)[:, 12:]  # which move from token to token, even where the best one stays
    assert (scores[:, 1:] - scores[:, :-1]).abs().amax() > 0.05


@pytest.mark.parametrize("name", sorted(set(MIXERS) - set(CAUSAL)))
def test_the_others_refuse_to_decode(name):
    with pytest.raises(Unsupported, match=f"{name} cannot be causal"):
        trunk(name, Decoder).build()


def test_causal_without_a_state_refuses_to_generate():
    for name in set(CAUSAL) - set(STREAMING):
        model = LanguageModel(trunk=trunk(name, Decoder)).build()
        with pytest.raises(Unsupported, match=f"{name} does not stream"):
            model.generate(ids(1, 3), 2)


@pytest.mark.parametrize("name", list(MIXERS))
def test_a_spec_string_is_the_config(name):
    stack = Stack(frame=Frame(dim=32, heads=4), order="s", mixer=str(small(MIXERS[name])))
    assert stack.mixer == small(MIXERS[name])
