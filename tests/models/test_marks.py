"""Marks go from the caller through embedding, stack and head to every mixer that knows them.

Truths: a longformer whose first tokens are global by its config is the same function as one without
any whose first tokens are marked; and the equation of each layer, written out, under the mark.
"""

import dataclasses
from functools import partial

import pytest
import torch
from model_parts import (
    VOCAB,
    assert_same,
    built,
    decoder,
    embedding,
    encoder,
    gradients,
    ids,
    stack,
)

from weft.errors import Unsupported, WeftError
from weft.layers.padding import restore
from weft.mixers import MIXERS, Frame
from weft.models import (
    Classifier,
    EarlyExit,
    EncoderDecoder,
    Funnel,
    LanguageModel,
    Matcher,
    PerceiverIO,
    PowerBert,
    fill_mask,
    leaving_early,
)
from weft.models.exits.policy import Patience
from weft.models.heads.conditional_masked import ConditionalMasked
from weft.models.heads.electra import Electra
from weft.models.stack.sublayer import MixingSublayer

N = 14
LOCAL = "longformer(window=3, global_first=0)"
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
VALID = torch.tensor([[1] * 14, [0, 1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1]], dtype=torch.bool)


def global_first(count):
    return f"longformer(window=3, global_first={count})"


def leading(count, valid=None):
    """The first real tokens of each row."""
    real = torch.ones(2, N, dtype=torch.bool) if valid is None else valid
    return {"is_global": real & (real.long().cumsum(1) <= count)}


def scattered(seed=0):
    chance = torch.rand(2, N, generator=torch.Generator().manual_seed(seed))
    return {"is_global": chance < 0.3}


# Each kind of model around a mixer, and how it is called with marks (None: without).
def on_encoder(head, call, mixer, **settings):
    return head(encoder(embed={"registers": 2}, mixer=mixer, **settings)), call


def two_sides(mixer, **settings):
    reading = decoder(order="scfscf", mixer="full", cross="full")
    writing = encoder(embed={"registers": 2}, mixer=mixer)
    return EncoderDecoder(encoder=writing, decoder=reading, **settings)


def given(marks, name="marks"):
    return {name: marks} if marks else {}


def direct(model, marks):
    return model(ids(2, N), valid=VALID, **given(marks))


def with_source(model, marks):
    source = {"source": ids(2, N), "source_valid": VALID}
    return model(ids(2, 5, seed=1), **source, **given(marks, "source_marks"))


def by_steps(model, marks):
    source = {"source": ids(2, N), "source_valid": VALID}
    state = model.start(2, **source, **given(marks, "source_marks"))
    return model.step(ids(2, 5, seed=1), state)[0]


def written(model, marks, beams=None):
    source = {"source": ids(2, N), "source_valid": VALID}
    more = {"beams": beams} if beams else {}
    prompt = ids(2, 3, seed=1)
    return model.eval().generate(prompt, 6, **source, **given(marks, "source_marks"), **more)


def matched(model, marks):
    sides = {"first_valid": VALID, **given(marks, "first_marks"), **given(marks, "second_marks")}
    return model(ids(2, N), ids(2, N, seed=3), second_valid=VALID, **sides)


def exits(model, marks):
    found = {"valid": VALID, **given(marks)}
    left = model.leave(ids(2, N), Patience(patience=1), **found)
    history = model.history(ids(2, N), **found)
    return torch.cat((history.flatten(1), left.scores, left.layers[:, None]), dim=1)


def filled(model, marks):
    text = ids(2, N).masked_fill(scattered(5)["is_global"], VOCAB - 1)
    return fill_mask(model, text, valid=VALID, **given(marks)).probabilities


head = partial(Classifier, classes=3)
KINDS = {
    "encoder": lambda m: on_encoder(lambda t: t, direct, m),
    "classifier": lambda m: on_encoder(lambda t: head(trunk=t), direct, m),
    "first": lambda m: on_encoder(lambda t: head(trunk=t, pool="first"), direct, m),
    "trimmed": lambda m: on_encoder(lambda t: head(trunk=t, pool="first", trimmed=True), direct, m),
    "matcher": lambda m: on_encoder(lambda t: Matcher(trunk=t), matched, m),
    "early exit": lambda m: on_encoder(lambda t: EarlyExit(trunk=t, classes=3), exits, m),
    "exits below": lambda m: on_encoder(
        lambda t: EarlyExit(trunk=t, classes=3, reads="below"), direct, m
    ),
    "masked language model": lambda m: on_encoder(lambda t: LanguageModel(trunk=t), filled, m),
    "electra": lambda m: on_encoder(lambda t: Electra(trunk=t), direct, m),
    "encoder-decoder": lambda m: (two_sides(m), with_source),
    "transparent": lambda m: (two_sides(m, transparent=True), with_source),
    "steps": lambda m: (LanguageModel(trunk=two_sides(m)), by_steps),
    "generate": lambda m: (LanguageModel(trunk=two_sides(m)), written),
    "beams": lambda m: (LanguageModel(trunk=two_sides(m)), partial(written, beams=2)),
    "conditional masked": lambda m: (
        ConditionalMasked(trunk=two_sides(m), longest=20),
        with_source,
    ),
    "checkpoint": lambda m: on_encoder(lambda t: t, direct, m, recompute="checkpoint"),
    "reversible": lambda m: on_encoder(lambda t: t, direct, m, recompute="reversible"),
    "shared": lambda m: on_encoder(lambda t: t, direct, m, shared=1),
    "universal": lambda m: on_encoder(lambda t: t, direct, m, depth="universal(steps=3)"),
    "layer drop": lambda m: on_encoder(lambda t: t, direct, m, depth="layer_drop(rate=0.5)"),
    "weighted": lambda m: on_encoder(lambda t: t, direct, m, order="ww"),
}


def same_weights(config, other):
    model = built(config)
    model.load_state_dict(other.state_dict())
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_marked_tokens_are_those_of_the_config(kind):
    """Two registers are global by the config, then three tokens by the config or by marks."""
    config, call = KINDS[kind](global_first(5))
    truth = built(config)
    model = same_weights(KINDS[kind](global_first(2))[0], truth)
    marks = leading(3, VALID)
    torch.testing.assert_close(call(model, marks), call(truth, None), **CLOSE)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("generate", "beams")])
def test_marks_matter_in_every_kind(kind):
    config, call = KINDS[kind](global_first(2))
    model = built(config).eval()
    without = call(model, {"is_global": torch.zeros(2, N, dtype=torch.bool)})
    assert not torch.allclose(call(model, scattered()), without)
    torch.testing.assert_close(without, call(model, None), **CLOSE)  # registers stay global


def test_electras_generator_reads_marks():
    truth = built(Electra(trunk=encoder(mixer=global_first(3))))
    model = same_weights(Electra(trunk=encoder(mixer=LOCAL)), truth)
    found = model.fill(ids(2, N), valid=VALID, marks=leading(3, VALID))
    torch.testing.assert_close(found, truth.fill(ids(2, N), valid=VALID), **CLOSE)


@pytest.mark.parametrize("recompute", ["nothing", "checkpoint", "reversible"])
def test_gradients_are_those_of_the_config(recompute):
    configs = [encoder(mixer=global_first(n), recompute=recompute) for n in (3, 0)]
    truth = built(configs[0])
    model = same_weights(configs[1], truth)
    wanted = truth(ids(2, N), valid=VALID).detach().sin()
    found = gradients(
        model, (model(ids(2, N), valid=VALID, marks=leading(3, VALID)) * wanted).sum()
    )
    expected = gradients(truth, (truth(ids(2, N), valid=VALID) * wanted).sum())
    assert_same(found, expected, **CLOSE)


def by_hand(model, x, valid, marks):
    """Pre-norm layers, each by its mixer's equation; rows of one length, nothing is padded."""
    assert valid is None
    h = model.embedding(x)
    if model.registers:
        h = torch.cat((model.register_rows(len(x)), h), dim=1)
    for sub in model.stack.running:
        inner = sub.norm(h)
        if sub.letter == "s":
            named = {}
            if "is_global" in sub.body.marks:
                first = torch.arange(model.registers) < sub.body.config.global_first
                named = {"is_global": torch.cat((first.expand(len(x), -1), marks["is_global"]), 1)}
            h = h + sub.body.reference(inner, **named)
        else:
            h = h + sub.body(inner)
    return model.stack.norm(h)[:, model.registers :]


MIXED = (LOCAL, "full", global_first(1), "linear_transformer")


@pytest.mark.parametrize("registers", [0, 2])
def test_a_stack_of_layers_that_know_and_do_not(registers):
    model = built(encoder(embed={"registers": registers}, order="sfsfsfsf", mixer=MIXED))
    x, marks = ids(2, N), scattered()
    expected = by_hand(model, x, None, marks)
    torch.testing.assert_close(model(x, marks=marks), expected, **CLOSE)


def test_a_stack_that_forgets_marks_in_one_layer_fails(monkeypatch):
    """The truth above tells a stack whose second longformer gets nothing from a sound one."""
    model = built(encoder(order="sfsfsfsf", mixer=MIXED))
    x, marks = ids(2, N), scattered()
    expected = by_hand(model, x, None, marks)
    know = [sub for sub in model.stack.running if "is_global" in getattr(sub.body, "marks", ())]
    sound = MixingSublayer.marks
    monkeypatch.setattr(
        MixingSublayer,
        "marks",
        lambda self, x, given: {} if self is know[1] else sound(self, x, given),
    )
    with pytest.raises(AssertionError):
        torch.testing.assert_close(model(x, marks=marks), expected, **CLOSE)


@pytest.mark.parametrize("registers", [0, 2])
def test_padding_and_batch_mates_change_nothing(registers):
    model = built(encoder(embed={"registers": registers}, mixer=global_first(1)))
    x, marks = ids(2, N), scattered(2)["is_global"]
    y = model(x, valid=VALID, marks={"is_global": marks})
    for row in range(2):
        real = VALID[row]
        alone = model(x[row][real][None], marks={"is_global": marks[row][real][None]})
        torch.testing.assert_close(y[row][real], alone[0], **CLOSE)
    assert not y[~VALID].any()


def test_marks_of_padding_change_nothing():
    model = built(encoder(mixer=LOCAL))
    marks = scattered()["is_global"]
    y = model(ids(2, N), valid=VALID, marks={"is_global": marks & VALID})
    other = model(ids(2, N), valid=VALID, marks={"is_global": marks | ~VALID})
    torch.testing.assert_close(y, other, rtol=0, atol=0)


def test_documents_of_a_packed_row_do_not_meet():
    """`segments` through a language model: each document alone gives the same scores."""
    config = LanguageModel(trunk=decoder(embed={"positions": "none"}, mixer="full"))
    model = built(config)
    x = ids(1, N)
    segments = (torch.arange(N) >= 6).long()[None]
    together = model(x, marks={"segments": segments})
    for part in (slice(0, 6), slice(6, N)):
        torch.testing.assert_close(together[:, part], model(x[:, part]), **CLOSE)
    assert not torch.allclose(together[:, 6:], model(x)[:, 6:])


def test_etc_counts_its_registers_as_the_global_tokens():
    mixer = "etc(window=3, global_tokens=2, clip=2)"
    model = built(encoder(embed={"registers": 2}, order="sf", mixer=mixer))
    x, member = ids(2, N), torch.arange(N).expand(2, -1) // 7
    h = torch.cat((model.register_rows(2), model.embedding(x)), dim=1)
    sub, feed = model.stack.running
    whole = torch.cat((torch.full((2, 2), -1), member), dim=1)
    h = h + sub.body.reference(sub.norm(h), member=whole)
    expected = model.stack.norm(h + feed.body(feed.norm(h)))[:, 2:]
    torch.testing.assert_close(model(x, marks={"member": member}), expected, **CLOSE)
    assert not torch.allclose(model(x), expected)


def test_a_funnel_pools_marks():
    """A pooled token is global if one of its real tokens is."""
    trunk = Funnel(embedding=embedding(), stack=stack(mixer=LOCAL), blocks=2, decoder="sf")
    model = built(trunk)
    marks = {"is_global": torch.zeros(2, N, dtype=torch.bool)}
    marks["is_global"][0, 5] = marks["is_global"][1, 9] = True  # padding of row 1 stands before it
    real = VALID.long().cumsum(1) - 1
    place = torch.tensor([5, int(real[1, 9])])
    order = (~VALID).to(torch.uint8).argsort(dim=1, stable=True)
    x, valid = ids(2, N).gather(1, order), VALID.gather(1, order)
    whole = {"is_global": torch.arange(N) == place[:, None]}
    half = {"is_global": torch.arange(N // 2) == place[:, None] // 2}
    first = model.stack(model.enter(model.embedding(x, valid=valid)), valid=valid, marks=whole)
    pooled, fewer = model._pooled(first, valid)
    context = {"context": first, "context_valid": valid}
    h = model.narrower[0](pooled, valid=fewer, marks=half, **context)
    y = model.decoder(first + h.repeat_interleave(2, dim=1), valid=valid, marks=whole)
    expected = restore(y, order, VALID)
    torch.testing.assert_close(model(ids(2, N), valid=VALID, marks=marks), expected, **CLOSE)


MARKS = scattered()
FULL_ENCODER = encoder(mixer="full")
NUMBERS = {"segments": torch.zeros(2, N, dtype=torch.long)}
FLOATS = {"is_global": torch.zeros(2, N)}
SHORT = {"is_global": torch.zeros(2, 3, dtype=torch.bool)}
PERCEIVER = PerceiverIO(embedding=embedding(), frame=Frame(dim=12, heads=3), outputs=2, latents=3)


def funnel(**settings):
    return Funnel(embedding=embedding(), stack=stack(mixer="full"), blocks=2, **settings)


@pytest.mark.parametrize(
    ("make", "marks", "message"),
    [
        (FULL_ENCODER, MARKS, "no mixer of this stack knows the mark 'is_global': it has full; .*"
         "mixers that do: longformer"),
        (encoder(mixer=LOCAL), {"is_globl": MARKS["is_global"]}, "did you mean 'is_global'"),
        (encoder(mixer=LOCAL), SHORT, r"is_global is \(batch, length\) = \(2, 14\); got \(2, 3\)"),
        (encoder(mixer=LOCAL), FLOATS, "is_global is boolean"),
        (encoder(embed={"registers": 1}, mixer="full"), NUMBERS, "use registers=0|registers=1"),
        (encoder(mixer="etc(global_tokens=0)"), {"member": NUMBERS["segments"]},
         "knows the mark 'member'"),
        (PowerBert(embedding=embedding(), stack=stack(mixer="full"), keep=(1.0, 0.5)), NUMBERS,
         "segments: power_bert"),
        (PERCEIVER, NUMBERS, "segments: latents read all tokens alike"),
        (funnel(), NUMBERS, "a funnel pools tokens of several numbers"),
        (decoder(mixer=LOCAL), MARKS, "a causal longformer takes its global tokens from"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("valid", [None, VALID])
def test_what_cannot_be_is_refused(make, marks, message, valid):
    with pytest.raises(WeftError, match=message):
        built(make)(ids(2, N), valid=valid, marks=marks)


def test_decoding_takes_no_marks():
    lm = built(LanguageModel(trunk=decoder(mixer="full"))).eval()
    early = leaving_early(lm, Patience(patience=1))
    for model in (lm, lm.trunk, early, early.trunk):
        with pytest.raises(WeftError, match="segments: decoding takes no marks"):
            model.step(ids(2, 1), model.start(2), marks={"segments": torch.zeros(2, 1).long()})
    with pytest.raises(WeftError, match="only an encoder-decoder reads a source"):
        lm.generate(ids(2, 2), 3, source_marks=MARKS)


def test_marks_and_masks_of_pairs_exclude_each_other():
    module = built(stack(mixer="full"))
    x = torch.randn(2, N, 12, dtype=torch.float64)
    pairs = {"seen": torch.ones(2, N, N, dtype=torch.bool), "places": torch.arange(N).expand(2, N)}
    with pytest.raises(Unsupported, match="who reads whom is given already"):
        module(x, **pairs, marks=NUMBERS)


def test_no_marks_are_no_marks():
    model = built(encoder(mixer="full"))
    expected = model(ids(2, N), valid=VALID)
    for none in (None, {}):
        got = model(ids(2, N), valid=VALID, marks=none)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_every_mark_is_named_once():
    """A name means one thing in all mechanisms that take it."""
    named = {}
    for name in MIXERS:
        for mark in MIXERS[name]().traits.marks:
            assert named.setdefault(mark.name, mark) == mark
    assert named.keys() == {"is_global", "member", "segments"}
    assert all(dataclasses.is_dataclass(mark) for mark in named.values())
