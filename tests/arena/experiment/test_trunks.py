"""Whatever Python can build a settings file can say: trunks, decoders, sharing, schedules."""

import dataclasses

import pytest
import torch

from weft.arena.experiment.runs import model_of, run_of
from weft.arena.experiment.settings import experiment, read_settings
from weft.errors import WeftError
from weft.models import (
    Classifier,
    EncoderDecoder,
    Funnel,
    LanguageModel,
    Matcher,
    PerceiverIO,
    PowerBert,
    load,
    save,
)
from weft.training import train
from weft.training.curriculum import LONGFORMER

PAIRS = "key_value(pairs=2, symbols=8, values=3, train=32, valid=8, test=8)"
REVERSAL = "reversal(length=6, symbols=6, train=32, valid=8, test=8)"
TRAINING = {"steps": 2, "batch": 4, "device": "cpu"}


def one(model, task=PAIRS, **more):
    small = {"dim": 8, "heads": 2, **({} if "perceiver" in str(model) else {"layers": 2})}
    tables = {"task": task, "training": TRAINING, "model": {**small, **model}, **more}
    return experiment(tables)


TRUNKS = {
    "funnel": {"trunk": "funnel(blocks=2, decoder='sf')"},
    "power_bert": {"trunk": "power_bert(keep=[1.0, 0.5])"},
    "perceiver": {"trunk": "perceiver(latents=4, layers=1)"},
    "perceiver, outputs": {"trunk": "perceiver(latents=4, layers=1, outputs=2)"},
    "decoder": {"trunk": "decoder", "head": {"pool": "last"}},
}
KINDS = {"funnel": Funnel, "power_bert": PowerBert, "perceiver": PerceiverIO}


@pytest.mark.parametrize("name", TRUNKS)
@pytest.mark.parametrize("kind", ["classify", "match"])
def test_any_trunk_under_a_head(name, kind, tmp_path):
    config = model_of(one(TRUNKS[name]))
    assert type(config.trunk).__name__ == KINDS.get(name.split(",")[0], type(config.trunk)).__name__
    if kind == "match":
        config = Matcher(trunk=config.trunk, classes=3, pool=config.pool)
    torch.manual_seed(0)
    module = config.build().eval()
    x = torch.randint(0, 8, (2, 7))
    valid = torch.arange(7) < torch.tensor([[7], [4]])
    inputs = ((x, x), {"first_valid": valid, "second_valid": valid})
    args, more = inputs if kind == "match" else ((x,), {"valid": valid})
    scores = module(*args, **more)
    assert scores.shape == (2, 3)
    assert torch.equal(load(save(module, tmp_path / "model"))(*args, **more), scores)
    other = x.masked_fill(~valid, 5)
    again = module(*((other,) * len(args)), **more)
    torch.testing.assert_close(again, scores, rtol=1e-5, atol=1e-6, msg="padding is read")


@pytest.mark.parametrize("name", TRUNKS)
def test_any_trunk_trains_from_a_file(name, tmp_path):
    own = one(TRUNKS[name])
    assert experiment(own.tables()) == own
    assert train(run_of(own), tmp_path / "run").status == "done"


@pytest.mark.parametrize("name", ["funnel", "power_bert", "perceiver"])
def test_any_encoder_fills_masks(name, tmp_path):
    own = one(TRUNKS[name], objective="masked_lm(rate=0.5)")
    config = model_of(own)
    assert isinstance(config, LanguageModel)
    assert isinstance(config.trunk, KINDS[name])
    scores = config.build()(torch.randint(0, 8, (2, 7)))
    assert scores.shape == (2, 7, config.trunk.embedding.vocab)
    assert train(run_of(own), tmp_path / "run").status == "done"


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        (
            TRUNKS["funnel"],
            {"objective": "causal_lm"},
            "causal_lm is learned by an encoder",
        ),
        (TRUNKS["perceiver"], {"objective": "permuted_lm"}, "permuted_lm is learned by an encoder"),
        (
            TRUNKS["perceiver"],
            {"task": REVERSAL},
            "written by an encoder and a decoder",
        ),
        (TRUNKS["perceiver, outputs"], {"objective": "masked_lm"}, "has no outputs of its own"),
        ({"trunk": "encoder_decoder"}, {}, "classifier.trunk is an Encoder"),
        ({"trunk": "power_bert"}, {}, "model.trunk: keep has one share in"),
        (
            {"trunk": "perceiver", "frame": {"positions": "rope"}},
            {},
            "a perceiver's latents",
        ),
    ],
)
def test_what_cannot_be_is_said(model, more, message):
    with pytest.raises(WeftError) as caught:
        model_of(one(model, **more))
    assert message in str(caught.value)


def trunk_of(**model):
    return model_of(one({**model, "layers": 2}, task=REVERSAL)).trunk


def test_a_trunk_of_two_sides():
    plain = model_of(one({"layers": 2}, task=REVERSAL)).trunk
    assert trunk_of(trunk="encoder_decoder(shares_embedding=true)") == plain
    transparent = trunk_of(trunk="encoder_decoder(shares_embedding=true, transparent=true)")
    assert transparent == dataclasses.replace(plain, transparent=True)


def test_sharing_on_one_side():
    both = trunk_of(trunk={"name": "encoder_decoder", "decoder": {"stack": {"shared": 1}}})
    assert (both.encoder.stack.shared, both.decoder.stack.shared) == (0, 1)
    assert both.decoder.dim == both.encoder.dim == 8, "the rest is the encoder's"
    built = both.build()
    assert len(built.decoder.stack.sublayers) == 3
    assert len(built.encoder.stack.sublayers) == 4
    other = trunk_of(trunk="encoder_decoder", shared=1)
    assert (other.encoder.stack.shared, other.decoder.stack.shared) == (1, 1), "it follows"
    kept = {"name": "encoder_decoder", "decoder": {"stack": {"shared": 0}}}
    other = trunk_of(trunk=kept, shared=1)
    assert (other.encoder.stack.shared, other.decoder.stack.shared) == (1, 0)


def test_a_decoder_of_its_own_refuses_another():
    with pytest.raises(WeftError, match="has a decoder of its own"):
        model_of(
            one(
                {"trunk": "encoder_decoder"},
                task=REVERSAL,
                objective="sequence_to_sequence(decoder_layers=1)",
            )
        )


def test_a_two_sided_file_trains(tmp_path):
    own = one({"trunk": "encoder_decoder(transparent=true)", "layers": 2}, task=REVERSAL)
    assert isinstance(model_of(own).trunk, EncoderDecoder)
    assert train(run_of(own), tmp_path / "run").status == "done"


def test_the_five_phases_of_longformer_in_a_file(tmp_path):
    text = "".join(
        f"""
[[phase]]
name = "{phase.name}"
steps = {phase.steps}
lr = {phase.lr}
schedule = "{phase.schedule}"
warmup = {phase.warmup}
batch = {phase.batch}
length = {phase.length}
mixer = {{window = {list(phase.mixer["window"])}}}
"""
        for phase in LONGFORMER
    )
    path = tmp_path / "five.toml"
    path.write_text(
        'task = "language(length=2048)"\nmixer = "longformer"\n[model]\nlayers = 12\n' + text
    )
    assert read_settings(path).experiment.phase == LONGFORMER


def test_a_causal_mechanism_for_a_task_of_classes():
    """What is causal by construction has a way out in a file."""
    own = one(
        {"trunk": "decoder", "mixer": "compressive(segment=4, memory=4)", "head": {"pool": "mean"}}
    )
    assert isinstance(model_of(own), Classifier)
    model_of(own).build()
