"""A model under `full()` is the model itself; under a window it is the model given the mask."""

import pytest
import torch
from plug_models import DECODERS, ENCODERS, TWO_SIDED, built, drawn_ids, vit

import weft.interop.hf as interop
from weft.patterns import Causal
from weft.patterns import pattern as parse
from weft.patterns.derive import mask as dense_mask

ONE_SIDED = [*DECODERS, *ENCODERS]
CLOSE = {"atol": 1e-10, "rtol": 0}
EAGER = {"atol": 1e-5, "rtol": 1e-4}  # takes its softmax in float32, whatever the model's precision


def padding(kind, batch, length):
    """Masks (b, n) of 1 and 0."""
    mask = torch.ones(batch, length, dtype=torch.long)
    if kind == "left":
        mask[0, :9] = 0
    if kind == "right":
        mask[0, -9:] = 0
        mask[1, -2:] = 0
    return mask


def logits_and_gradients(model, real, **given):
    model.zero_grad()
    logits = model(**given).logits
    (logits[real] * torch.linspace(-1, 1, logits.shape[-1])).sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return logits[real].detach(), gradients


def assert_same(one, other, eager=False):
    torch.testing.assert_close(one[0], other[0], **(EAGER if eager else CLOSE))
    assert one[1].keys() == other[1].keys()
    for name, gradient in one[1].items():
        close = {"atol": 1e-3, "rtol": 1e-3} if eager else {"atol": 1e-8, "rtol": 1e-8}
        torch.testing.assert_close(gradient, other[1][name], **close, msg=name)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "kind", ["left", *(pytest.param(kind, marks=LONG) for kind in ("none", "right"))]
)
@pytest.mark.parametrize("name", ONE_SIDED)
def test_full_is_the_model_itself(name, kind):
    model, ids = built(name), drawn_ids(3, 37)
    mask = padding(kind, 3, 37)
    given = {"input_ids": ids, "attention_mask": mask}
    own = logits_and_gradients(model, mask.bool(), **given)
    interop.use(model, "full()")
    again = logits_and_gradients(model, mask.bool(), **given)
    assert_same(own, again, eager=name == "gpt_oss")


@pytest.mark.parametrize("name", TWO_SIDED)
def test_full_is_the_encoder_decoder_itself(name):
    model = built(name)
    mask = padding("left", 2, 21)
    target = padding("right", 2, 21)
    given = {
        "input_ids": drawn_ids(2, 21),
        "attention_mask": mask,
        "decoder_input_ids": drawn_ids(2, 21, seed=2),  # as long as the source
        "decoder_attention_mask": target,
    }
    own = logits_and_gradients(model, target.bool(), **given)
    interop.use(model, "full()")
    assert_same(own, logits_and_gradients(model, target.bool(), **given))


def test_full_is_the_picture_model_itself():
    model, pixels = vit(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    real = torch.ones(2, dtype=torch.bool)
    own = logits_and_gradients(model, real, pixel_values=pixels)
    interop.use(model, "full()")
    assert_same(own, logits_and_gradients(model, real, pixel_values=pixels))


WINDOWS = ["sliding(5)", "sliding(4) | keys(first=2)", "strided(3) | keys(at=[5])"]


@pytest.mark.parametrize("text", WINDOWS)
@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=LONG) for name in ("gpt2", "bert", "roberta"))]
)
def test_a_pattern_is_the_model_given_its_mask(name, text):
    model, ids = built(name), drawn_ids(2, 30)
    pattern = parse(text)
    seen = dense_mask(Causal() & pattern if name in DECODERS else pattern, 30)[None]
    added = torch.zeros(1, 1, 30, 30, dtype=torch.float64).masked_fill(~seen, -1e300)
    real = torch.ones(2, 30, dtype=torch.bool)
    dense = logits_and_gradients(model, real, input_ids=ids, attention_mask=added)
    assert not torch.allclose(dense[0], model(input_ids=ids).logits[real])
    interop.use(model, text)
    assert_same(dense, logits_and_gradients(model, real, input_ids=ids))


@pytest.mark.parametrize("name", ["mistral", "qwen2", "gemma3", "gpt_oss", "modernbert"])
def test_a_window_of_the_models_own_stays(name):
    model, ids = built(name), drawn_ids(2, 30)
    pattern = parse("sliding(12) & ~keys(at=[20])")
    inside = dense_mask(Causal() & pattern if name in DECODERS else pattern, 30)
    kinds = getattr(model.config, "layer_types", None) or ["sliding_attention"] * 2
    size = 5 if name == "modernbert" else model.config.sliding_window  # counts one side alone
    own = dense_mask(parse(f"sliding({size})"), 30)
    layers = [inside & own if kind == "sliding_attention" else inside for kind in kinds]
    expected = with_masks(built(name), layers)(input_ids=ids).logits
    interop.use(model, pattern)
    close = EAGER if name == "gpt_oss" else CLOSE
    torch.testing.assert_close(model(input_ids=ids).logits, expected, **close)


def with_masks(model, masks):
    """The model's own eager attention, each layer under the mask (1, n, n) given for it."""
    for layer, seen in zip(model.base_model.layers, masks, strict=True):
        module = getattr(layer, "self_attn", None) or layer.attn
        lowest = torch.finfo(model.dtype).min
        added = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, lowest)

        def put(module, given, named, added=added):
            return given, {**named, "attention_mask": added[None]}

        module.register_forward_pre_hook(put, with_kwargs=True)
    return model


@pytest.mark.parametrize("text", ["full()", "sliding(4)", "sliding(3) | keys(first=2)"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_packed_documents_are_as_if_alone(name, text):
    model = interop.use(built(name), text)
    ids, lengths = drawn_ids(1, 29), [11, 1, 2, 15]
    places = torch.cat([torch.arange(length) for length in lengths])[None]
    packed = model(input_ids=ids, position_ids=places, use_cache=False).logits
    alone = [model(input_ids=part).logits for part in ids.split(lengths, dim=1)]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), **CLOSE)


@pytest.mark.parametrize("text", ["sliding(4) | keys(first=2)", "strided(3)"])
@pytest.mark.parametrize("kind", ["left", pytest.param("right", marks=LONG)])
@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "t5"])
def test_padding_changes_nothing_under_a_pattern(name, kind, text):
    model, ids = interop.use(built(name), text), drawn_ids(3, 24)
    mask = padding(kind, 3, 24)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    further = {"position_ids": places} if name in DECODERS else {}
    if name == "t5":
        model = model.encoder
        logits = model(input_ids=ids, attention_mask=mask).last_hidden_state
    else:
        logits = model(input_ids=ids, attention_mask=mask, **further).logits
    for row, real in enumerate(mask.bool()):
        alone = model(input_ids=ids[row : row + 1, real])
        alone = alone.last_hidden_state if name == "t5" else alone.logits
        if name == "bert" and kind == "left":
            continue  # its learned positions count padding
        torch.testing.assert_close(logits[row, real], alone[0], **CLOSE)


def test_padding_between_tokens_changes_nothing():
    model, ids = interop.use(built("llama"), "sliding(4) | keys(first=2)"), drawn_ids(1, 24)
    mask = torch.ones(1, 24, dtype=torch.long)
    mask[0, 7:11] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=places).logits
    alone = model(input_ids=ids[:, mask[0].bool()]).logits
    torch.testing.assert_close(logits[:, mask[0].bool()], alone, **CLOSE)


def test_layers_differ():
    model, ids = built("llama"), drawn_ids(1, 30)
    patterns = {"*": "sliding(3)", "1": "full()"}
    layers = [dense_mask(Causal() & parse("sliding(3)"), 30), dense_mask(Causal(), 30)]
    expected = with_masks(built("llama"), layers)(input_ids=ids).logits
    logits = interop.use(model, patterns)(input_ids=ids).logits
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_sides_differ():
    model = interop.use(built("t5"), {"encoder.*": "sliding(3)"})
    given = {"input_ids": drawn_ids(1, 20), "decoder_input_ids": drawn_ids(1, 20)}
    both = model(**given).logits
    interop.use(model, "sliding(3)")
    assert not torch.allclose(both, model(**given).logits)
    interop.use(model, {"encoder.*": "sliding(3)", "decoder.*": "full()"})
    torch.testing.assert_close(both, model(**given).logits, **CLOSE)


def test_none_restores():
    model, ids = built("llama", "sdpa"), drawn_ids(1, 12)
    own = model(input_ids=ids).logits
    interop.use(interop.use(model, "sliding(2)"), "sliding(3)")
    assert not torch.allclose(own, model(input_ids=ids).logits)
    interop.use(model, None)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(own, model(input_ids=ids).logits)


def test_a_registered_name_is_enough():
    name = interop.register("sliding(5)")
    assert name == interop.register(parse("sliding(window=5)"))
    model, ids = built("llama"), drawn_ids(1, 30)
    expected = interop.use(model, "sliding(5)")(input_ids=ids).logits
    other = built("llama", name)
    torch.testing.assert_close(other(input_ids=ids).logits, expected, **CLOSE)


def test_dropout_drops_in_training_alone():
    model, ids = built("llama"), drawn_ids(1, 30)
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    interop.use(model, "sliding(5)")
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    model.train()
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


@pytest.mark.filterwarnings("ignore::weft.interop.hf.DenseMaskWarning")
def test_a_mask_of_pairs_of_the_callers_own():
    model, ids = built("llama"), drawn_ids(1, 16)
    seen = torch.rand(1, 1, 16, 16) < 0.5
    seen |= torch.eye(16, dtype=torch.bool)
    inside = seen & dense_mask(Causal() & parse("sliding(6)"), 16)
    added = torch.zeros(1, 1, 16, 16, dtype=torch.float64).masked_fill(~inside, -1e300)
    expected = model(input_ids=ids, attention_mask=added).logits
    interop.use(model, "causal & sliding(6)")
    torch.testing.assert_close(model(input_ids=ids, attention_mask=seen).logits, expected, **CLOSE)


def test_a_mask_of_pairs_says_that_it_is_dense():
    model = interop.use(built("llama"), "sliding(6)")
    with pytest.warns(interop.DenseMaskWarning, match="as dense attention does"):
        model(input_ids=drawn_ids(1, 8), attention_mask=torch.ones(1, 1, 8, 8, dtype=torch.bool))
