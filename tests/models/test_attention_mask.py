"""`attention_mask`, as tokenizers give it, says the same as `valid`, in every module."""

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import (
    Classifier,
    ConditionalMasked,
    Decoder,
    EarlyExit,
    Electra,
    Encoder,
    EncoderDecoder,
    Funnel,
    LanguageModel,
    Matcher,
    PerceiverIO,
    PowerBert,
    Stack,
)

FRAME = Frame(dim=16, heads=2)
IDS = torch.arange(24).view(2, 12) % 7
VALID = torch.ones(2, 12, dtype=torch.bool)
VALID[0, 9:], VALID[1, :4] = False, False


def parts(order="sfsf", registers=0, mixer="full"):
    stack = Stack(frame=FRAME, order=order, mixer=mixer)
    return {"embedding": Embedding(vocab=8, registers=registers), "stack": stack}


def pair():
    decoder = Decoder(**parts("scf"))
    return EncoderDecoder(encoder=Encoder(**parts(registers=1)), decoder=decoder)


ENCODER, DECODER = Encoder(**parts()), Decoder(**parts())
ONE_SEQUENCE = [
    ENCODER,
    DECODER,
    Funnel(**parts(), blocks=2),
    PowerBert(**parts(), keep=(0.5, 0.5)),
    PerceiverIO(embedding=Embedding(vocab=8), frame=FRAME, latents=4, outputs=3),
    Classifier(trunk=ENCODER, classes=3),
    LanguageModel(trunk=ENCODER),
    LanguageModel(trunk=DECODER),
    Electra(trunk=ENCODER),
    EarlyExit(trunk=ENCODER, classes=3),
]
MASKS = {
    "bool": VALID,
    "int64": VALID.long(),
    "int32": VALID.int(),
    "uint8": VALID.byte(),
    "float": VALID.float(),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("config", ONE_SEQUENCE, ids=lambda config: config.name)
def test_a_mask_says_what_valid_says(config, kind):
    model = config.build().eval()
    masked = model(IDS, attention_mask=MASKS[kind])
    assert torch.equal(masked, model(IDS, valid=VALID))
    assert not torch.equal(masked, model(IDS))


def test_a_stack_takes_a_mask():
    stack, x = Stack(frame=FRAME, order="sf").build(), torch.randn(2, 12, 16)
    assert torch.equal(stack(x, attention_mask=VALID.long()), stack(x, valid=VALID))


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_takes_a_mask(name):
    config = MIXERS[name]()
    layer = config.build(dim=16, heads=2, length=16, causal=not config.traits.bidirectional).eval()
    x = torch.randn(2, 12, 16)
    assert torch.equal(layer(x, attention_mask=VALID.long()), layer(x, valid=VALID))


def test_a_mask_inside_one_graph():
    layer, x = MIXERS["full"]().build(dim=16, heads=2), torch.randn(2, 12, 16)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, attention_mask=VALID.long()), layer(x, valid=VALID))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attention_mask": VALID, "valid": VALID}, "give one of them"),
        ({"attention_mask": VALID[:, None, None].float()}, r"got \(2, 1, 1, 12\).*a pattern"),
        ({"attention_mask": VALID[:, :5]}, r"= \(2, 12\).*got \(2, 5\)"),
        ({"attention_mask": VALID.tolist()}, r"is a tensor \(batch, length\)"),
        ({"attention_mask": VALID.long() * 2}, "from 0 to 2"),
        ({"attention_mask": (VALID.float() - 1) * 1e9}, "becomes one by mask == 0"),
        ({"attention_mask": torch.full((2, 12), torch.nan)}, "from nan to nan"),
    ],
)
def test_what_is_not_such_a_mask(given, message):
    with pytest.raises(WeftError, match=message):
        ENCODER.build()(IDS, **given)
    with pytest.raises(WeftError, match=message):
        MIXERS["longformer"]().build(FRAME)(torch.randn(2, 12, 16), **given)


@pytest.mark.parametrize(
    "config",
    [pair(), LanguageModel(trunk=pair()), ConditionalMasked(trunk=pair(), longest=12)],
    ids=lambda config: config.name,
)
def test_a_mask_of_one_of_two_sequences_is_refused(config):
    with pytest.raises(WeftError, match=r"reads two sequences.*source_valid"):
        config.build()(IDS, source=IDS, attention_mask=VALID)


def test_a_matcher_asks_for_a_mask_of_each():
    with pytest.raises(WeftError, match="give first_valid and second_valid"):
        Matcher(trunk=ENCODER).build()(IDS, IDS, attention_mask=VALID)
