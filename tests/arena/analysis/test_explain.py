"""What an answer rests on, against the definition, one token left out by hand after another.

Seen to fail: with the difference turned round; with the places of a later part starting at 0; with
NaN of global queries left in.
"""

import numpy as np
import pytest
import torch

import weft
from weft.arena.analysis.explain import explain
from weft.objectives.batch import Batch


def classifier(mixer, classes=2, layers=1):
    torch.manual_seed(0)
    return weft.Classifier(
        trunk=weft.Encoder(
            embedding=weft.Embedding(vocab=11),
            stack=weft.Stack(frame=weft.Frame(dim=8, heads=2), order="sf" * layers, mixer=mixer),
        ),
        classes=classes,
        pool="mean",
    ).build()


def batch(n=7):
    return Batch(x=torch.arange(n)[None], valid=None, y=torch.zeros(1, dtype=torch.long))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("together", [1, 20, 1000])
def test_influence_is_what_a_token_adds_to_the_log_odds(classes, together, monkeypatch):
    monkeypatch.setattr("weft.arena.analysis.explain.TOKENS", together)
    model = classifier("full", classes, layers=2).double().eval()
    found = explain(model, batch(), answer=1)

    def margin(place=None):
        def left_out(_, __, output):
            rows = list(output[0])
            if place is not None:
                rows[place] = sum(rows) / len(rows)
            return torch.stack(rows)[None]

        handle = model.trunk.embedding.register_forward_hook(left_out)
        with torch.no_grad():
            share = model(batch().x).softmax(-1)[0, 1]
        handle.remove()
        return (share / (1 - share)).log().item()

    by_hand = [margin() - margin(place) for place in range(7)]
    np.testing.assert_allclose(found.influence, by_hand, rtol=1e-9, atol=1e-12)
    assert found.answer == 1
    assert found.probability == pytest.approx(1 / (1 + np.exp(-margin())))


def test_tokens_are_counted_without_registers():
    model = weft.Classifier(
        trunk=weft.Encoder(
            embedding=weft.Embedding(vocab=11, registers=2),
            stack=weft.Stack(frame=weft.Frame(dim=8, heads=2), mixer="full"),
        ),
        classes=2,
        pool="first",
    ).build()
    found = explain(model.eval(), batch())
    assert found.influence.shape == found.attended.shape == (7,)


def test_the_answer_is_the_likeliest_class_where_none_is_named():
    model = classifier("full", 3).eval()
    with torch.no_grad():
        expected = int(model(batch().x).argmax())
    assert explain(model, batch()).answer == expected


@pytest.mark.parametrize("mixer", ["full", "longformer(window=2, global_first=1)"])
def test_attention_is_a_share_of_each_token(mixer):
    found = explain(classifier(mixer).eval(), batch())
    assert np.isfinite(found.attended).all(), "global queries have values of their own"
    assert found.attended.sum() == pytest.approx(1.0)
    assert (found.attended >= 0).all()


def test_a_mechanism_without_values_has_no_attention():
    found = explain(classifier("fnet").eval(), batch())
    assert found.attended is None
    assert np.isfinite(found.influence).all()


def test_what_is_no_classifier_is_refused():
    decoder = weft.LanguageModel(
        trunk=weft.Decoder(
            embedding=weft.Embedding(vocab=11),
            stack=weft.Stack(frame=weft.Frame(dim=8, heads=2), mixer="full"),
        )
    ).build()
    with pytest.raises(weft.errors.Unsupported, match="classifiers"):
        explain(decoder, batch())
