"""Perceiver IO of several modalities: against Transformers, padding, queries, saving."""

import pytest
import torch
from model_parts import built
from transformers import PerceiverConfig
from transformers.models.perceiver import modeling_perceiver as theirs

from mixers.test_perceiver import copy_block
from weft.config import changed, write
from weft.errors import WeftError
from weft.layers.fronts.conv_features import ConvFeatures
from weft.layers.fronts.fourier import fourier_features
from weft.layers.fronts.modality import Modality, ModalityEncoder
from weft.mixers import Frame
from weft.models import Classifier, MultimodalPerceiver, load, save

SOUND = Modality(name="audio", shape=(24,))
PICTURE = Modality(name="image", shape=(4, 6), channels=3)
TEXT = Modality(name="text", shape=(7,), vocab=11)
NUMBERS = Modality(name="numbers", shape=(5,))
ENCODERS = {
    "audio": ModalityEncoder(modality="audio", patch=4, bands=3),
    "image": ModalityEncoder(modality="image", patch=2, bands=2),
    "text": ModalityEncoder(modality="text", bands=2),
    "numbers": ModalityEncoder(modality="numbers", bands=0),
}


def model(modalities=(SOUND, PICTURE, TEXT, NUMBERS), **settings):
    encoders = tuple(ENCODERS[each.name] for each in modalities)
    found = {"frame": Frame(dim=24, heads=4), "latents": 5, "layers": 2, "encoders": encoders}
    return MultimodalPerceiver(**{**found, "modalities": modalities, **settings})


def inputs(batch=2, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {
        "audio": torch.randn(batch, 24, generator=rng),
        "image": torch.randn(batch, 4, 6, 3, generator=rng),
        "text": torch.randint(11, (batch, 7), generator=rng),
        "numbers": torch.randn(batch, 5, generator=rng),
    }


@pytest.mark.parametrize(("grid", "bands"), [((9,), 4), ((4, 6), 3), ((2, 3, 5), 2)])
def test_fourier_features_equal_transformers(grid, bands):
    places = theirs.build_linear_positions(grid).reshape(1, -1, len(grid))
    expected = theirs.generate_fourier_features(places, bands, max_resolution=grid)[0]
    torch.testing.assert_close(fourier_features(grid, bands), expected, rtol=0, atol=1e-6)


def their_model(dim):
    """Their Perceiver of a sound in patches and a picture of pixels, as wide as `dim`."""
    config = PerceiverConfig(
        num_latents=5, d_latents=dim, d_model=dim, num_blocks=1, num_self_attends_per_block=2,
        num_self_attention_heads=4, num_cross_attention_heads=4, attention_probs_dropout_prob=0.0,
        self_attention_widening_factor=1, cross_attention_widening_factor=1,
    )  # fmt: skip
    audio = theirs.PerceiverAudioPreprocessor(
        config, samples_per_patch=4,
        fourier_position_encoding_kwargs={
            "num_bands": 3, "max_resolution": (6,), "sine_only": False, "concat_pos": True,
        },
    )  # fmt: skip
    image = theirs.PerceiverImagePreprocessor(
        config, prep_type="pixels", spatial_downsample=1, in_channels=3,
        position_encoding_type="fourier", concat_or_add_pos="concat",
        fourier_position_encoding_kwargs={
            "num_bands": 3, "max_resolution": (4, 6), "sine_only": False, "concat_pos": True,
        },
    )  # fmt: skip
    both = theirs.PerceiverMultimodalPreprocessor(
        {"audio": audio, "image": image}, min_padding_size=dim - 17
    )
    assert both.num_channels == dim
    found = theirs.PerceiverModel(config, input_preprocessor=both)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return found.double().eval()


def test_it_equals_transformers_with_two_modalities():
    """Our matrices put numbers and features where theirs are; our biases are their pads."""
    other, dim = their_model(24), 24
    encoders = (ENCODERS["audio"], ModalityEncoder(modality="image", bands=3))
    ours = built(model((SOUND, PICTURE), encoders=encoders))
    with torch.no_grad():
        for name in ("audio", "image"):
            reader = ours.embedding.reader(name)
            content, width = reader.weight.shape[1], reader.where.shape[1]
            eye = torch.eye(dim, dtype=torch.float64)
            reader.weight.copy_(eye[:, :content])
            reader.where.copy_(eye[:, content : content + width])
            pad = other.input_preprocessor.padding[name][0]
            assert len(pad) == dim - content - width
            reader.bias.copy_(torch.cat((torch.zeros(content + width).double(), pad)))
        ours.latents.start.copy_(other.embeddings.latents)
    encoder = other.encoder
    copy_block(ours.latents.read[0], encoder.cross_attention)
    for mine, layer in zip(ours.latents.think[0], encoder.self_attends, strict=True):
        copy_block(mine, layer)
    given = {name: value.double() for name, value in inputs().items()}
    x, valid = ours.config.pack({name: given[name] for name in ("audio", "image")})
    assert valid is None
    expected = other(
        {"audio": given["audio"], "image": given["image"].permute(0, 3, 1, 2)}
    ).last_hidden_state
    # Features are rounded to float32 by both.
    torch.testing.assert_close(ours.encode(x.double()), expected, rtol=0, atol=1e-6)


def test_patches_are_squares_of_the_picture():
    reader = ENCODERS["image"].build(PICTURE, 8)
    picture = torch.arange(72.0).reshape(1, 4, 6, 3)
    content, _ = reader._patches(picture.flatten(1), None)
    assert content.shape == (1, 6, 12)
    for row in range(2):
        for column in range(3):
            square = picture[0, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(content[0, 3 * row + column], square.flatten())


def test_what_lacks_is_not_read():
    """A row without a sound and with a shorter text is what it is by itself."""
    ours, given = built(model()), inputs()
    given["text"] = given["text"].float()
    given["audio"][1] = torch.nan
    given["text"][1, 4:] = torch.nan
    x, valid = ours.config.pack(given)
    together = ours.encode(x.double(), valid=valid)
    noisy = torch.where(valid[..., None], x, torch.full_like(x, torch.nan))
    torch.testing.assert_close(ours.encode(noisy.double(), valid=valid), together, rtol=0, atol=0)
    alone = built(model((PICTURE, TEXT, NUMBERS)))
    alone.embedding.readers = torch.nn.ModuleList(ours.embedding.readers[1:])
    for part in ("latents", "decoder"):
        setattr(alone, part, getattr(ours, part))
    short = {name: given[name][1:] for name in ("image", "text", "numbers")}
    x, valid = alone.config.pack({**short, "text": given["text"][1:, :4]})
    torch.testing.assert_close(
        alone.encode(x.double(), valid=valid), together[1:], rtol=0, atol=1e-12
    )


def test_a_front_reads_sound_with_padding():
    front = ConvFeatures(width=6, kernels=(4, 3), strides=(2, 2), norm="layer", bias=True)
    ours = built(model(encoders=(ModalityEncoder(modality="audio", front=front),)))
    given = inputs()
    shorter = {**given, "audio": given["audio"][:, :17]}
    x, valid = ours.config.pack(shorter)
    assert int(ours.embedded(x.double(), valid)[1][:, :5].sum()) == 2 * front.frames(17)
    noisy = {**given, "audio": torch.cat((given["audio"][:, :17], torch.full((2, 7), 9.0)), 1)}
    dirty = ours.config.pack(noisy)[0]
    torch.testing.assert_close(
        ours.encode(dirty.double(), valid=valid), ours.encode(x.double(), valid=valid)
    )


def test_outputs_are_asked_for_by_elements():
    """Queries are W φ(p) + b of each element: the output of one is that of its query alone."""
    ours = built(model(asked=("image", "text")))
    x, valid = ours.config.pack(inputs())
    y = ours(x.double(), valid=valid)
    parts = ours.split(y)
    assert {k: tuple(v.shape) for k, v in parts.items()} == {
        "image": (2, 6, 24),
        "text": (2, 7, 24),
    }
    reader = ours.embedding.reader("image")
    query = fourier_features((2, 3), 2).double()[4] @ reader.where.T + reader.bias
    z = ours.encode(x.double(), valid=valid)
    expected = ours.decoder(query.expand(2, 1, -1), z)
    torch.testing.assert_close(parts["image"][:, 4:5], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("settings", [{}, {"outputs": 2}, {"asked": ("audio",)}])
def test_every_parameter_learns_under_a_classifier(settings):
    ours = built(Classifier(trunk=model(**settings), classes=3))
    x, valid = ours.config.trunk.pack(inputs())
    ours(x.double(), valid=valid).square().sum().backward()
    unused = () if settings else ("trunk.decoder",)  # latents are pooled: nothing is decoded
    for name, parameter in ours.named_parameters():
        learns = parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert learns or name.startswith(unused), name


def test_it_is_saved_and_read_from_settings(tmp_path):
    ours = built(Classifier(trunk=model(outputs=1), classes=3), torch.float32).eval()
    again = load(save(ours, tmp_path / "model"))
    assert again.config == ours.config
    x, valid = ours.config.trunk.pack(inputs())
    assert torch.equal(again(x, valid=valid), ours(x, valid=valid))
    table = {"encoders": [{"modality": "audio", "patch": 8, "bands": 2}]}
    trunk = changed(model(), table)
    assert trunk.encoders == (ModalityEncoder(modality="audio", patch=8, bands=2),)
    assert write(trunk)["encoders"][0]["patch"] == 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model((SOUND, SOUND)), "different names"),
        (lambda: model(encoders=(ModalityEncoder(modality="sond"),)), "no modality 'sond'"),
        (lambda: model(encoders=(ENCODERS["text"],) * 2), "one encoder each.*'text', 'text'"),
        (lambda: model(asked=("smell",)), "no modality 'smell'"),
        (lambda: model(asked=("text",), outputs=2), "asked=.*outputs=2"),
        (
            lambda: model(encoders=(ModalityEncoder(modality="audio", patch=5),)),
            "patches of 5 fill no grid",
        ),
        (
            lambda: model(encoders=(ModalityEncoder(modality="text", patch=7),)),
            "each its own element",
        ),
        (lambda: model(()).build(), "give modalities="),
        (lambda: Modality(shape=()), "one axis or more"),
        (lambda: Modality(channels=2, vocab=5), "numbers .channels. or one id"),
        (lambda: ModalityEncoder(front=ConvFeatures(), patch=2), "leave out patch"),
        (
            lambda: model(encoders=(ModalityEncoder(modality="image", front=ConvFeatures()),)),
            "a front reads numbers over time",
        ),
        (
            lambda: model(encoders=(ModalityEncoder(modality="audio", front=ConvFeatures()),)),
            "a frame is made of 400 samples; modality 'audio' has 24",
        ),
        (lambda: model().pack({"smell": torch.zeros(1, 2)}), "a dict of audio, image"),
        (lambda: model().pack({}), "one or more of them"),
        (lambda: model().pack({"image": torch.zeros(2, 6, 4, 3)}), "modality 'image' is"),
        (lambda: model().build()(torch.zeros(1, 9, 1)), "are .b, 108, 1., the values of audio 24"),
        (
            lambda: model().build()(model().pack({"text": torch.full((1, 7), 11)})[0]),
            "modality 'text' holds ids 0 to 10; got 11",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(WeftError, match=message):
        make()
