"""Imported models compute what Transformers computes: outputs and gradients, padding included."""

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from models import TINY, VOCAB
from weft.interop.hf import load, patches, pixels
from weft.interop.hf.checkpoints.load import head_of, reading_of
from weft.interop.hf.checkpoints.names import converted
from weft.interop.hf.checkpoints.registry import FILES, REFUSED, readers

N, M = 20, 9


def inputs(name, dtype):
    """(arguments of Transformers, positional and keyword arguments of weft, real tokens)."""
    tiny, draw = TINY[name], torch.Generator().manual_seed(3)
    if tiny.kind.startswith("ViT"):
        pictures = torch.randn(2, 3, 8, 8, generator=draw).to(dtype)
        return {"pixel_values": pictures}, (patches(pictures, 4),), {}, None
    if tiny.kind.startswith("Swin"):
        side = tiny.settings["image_size"]
        pictures = torch.randn(2, 3, side, side, generator=draw).to(dtype)
        return {"pixel_values": pictures}, (pixels(pictures),), {}, None
    ids = torch.randint(5, VOCAB, (2, N), generator=draw)[: tiny.texts]
    mask = torch.ones(ids.shape, dtype=torch.long)
    if not tiny.padded:
        return {"input_ids": ids}, (ids,), {}, mask.bool()
    mask[1, N - tiny.missing :] = 0
    theirs = {"input_ids": ids, "attention_mask": mask}
    if not getattr(tiny.config_class(**tiny.settings), "is_encoder_decoder", False):
        return theirs, (ids,), {"attention_mask": mask}, mask.bool()
    target = torch.randint(5, VOCAB, (2, M), generator=draw)
    real = torch.ones(2, M, dtype=torch.bool)
    real[1, M - 2 :] = False
    theirs |= {"decoder_input_ids": target, "decoder_attention_mask": real.long()}
    return theirs, (target,), {"source": ids, "source_valid": mask.bool(), "valid": real}, real


def output_of(model, theirs):
    found = model(**theirs)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


def rows(y, real):
    return y if y.dim() == 2 or real is None else y[real]


def both(name, dtype):
    """(their model, our model, their output, our output) at real tokens."""
    model = TINY[name].build(dtype)
    ours = load(model)
    theirs, args, given, real = inputs(name, dtype)
    expected, found = output_of(model, theirs), ours(*args, **given)
    if name == "ViT, body":  # the first token is a register, which the body does not return
        expected = expected[:, 1:]
    if name == "ImageGPT":  # the start of a picture is never predicted
        assert bool((found[..., -1] == -torch.inf).all())
        found = found[..., :-1]
    return model, ours, rows(expected, real), rows(found, real)


@pytest.mark.parametrize("name", TINY)
def test_outputs_and_gradients_are_theirs(name):
    model, ours, expected, found = both(name, TINY[name].dtype)
    tolerance = TINY[name].tolerance
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5)).to(expected)
    for y in (expected, found):
        (y * weights).sum().backward()
    check_gradients(model, ours, 50 * tolerance)


def check_gradients(model, ours, tolerance):
    """Converting is affine: gradients are what it makes of weights + gradients, minus weights."""
    names = reading_of(model.config, head_of(type(model).__name__)).names
    state = {name: p.detach() for name, p in model.state_dict().items()}
    zero = {name: torch.zeros_like(p) for name, p in state.items()}
    grads = {
        name: zero[name] if p.grad is None or name.endswith("cls_token") else p.grad
        for name, p in model.state_dict(keep_vars=True).items()
    }
    wanted = dict(ours.named_parameters())
    moved = converted(names, {name: state[name] + grads[name] for name in state}, wanted)
    still = converted(names, state, wanted)
    buffers = {"output.bias"} if "final_logits_bias" in state else set()  # theirs is no parameter
    for name, parameter in wanted.items():
        if name in buffers:
            continue
        expected = (moved[name] - still[name]).to(parameter)  # theirs of routers become float32
        got = torch.zeros_like(expected) if parameter.grad is None else parameter.grad
        assert torch.allclose(got, expected, rtol=1e-5, atol=tolerance), name


@pytest.mark.parametrize("name", ["BERT", "Llama", "Gemma 3", "T5", "Longformer"])
def test_in_float32(name):
    _, _, expected, found = both(name, torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_every_reader_is_tried():
    tried = {tiny.config_class.model_type for tiny in TINY.values()}
    assert tried == set(readers()) == set(FILES)


LONG = set(
    [
        "longformer",
        "led",
        "bigbird_pegasus",
        "big_bird",
        "reformer",
        "fnet",
        "funnel",
        "nystromformer",
        "perceiver",
        "longt5",
        "yoso",
        "mra",
        "xlnet",
        "swin",
        "swinv2",
        "imagegpt",
        "switch_transformers",
        "mpnet",
        "pegasus_x",
        "canine",
    ]
)


def test_long_models_are_read_or_refused_with_a_reason():
    gone = {"transfo-xl", "mega"}
    assert not LONG - set(FILES) - set(REFUSED)
    assert not set(FILES) & set(REFUSED)
    assert (set(FILES) | set(REFUSED)) - gone <= set(CONFIG_MAPPING)  # names that config.json has
    assert not gone & set(CONFIG_MAPPING)


def test_kinds_of_tokens():
    model = TINY["BERT"].build()
    ours, ids = load(model), torch.arange(12).view(2, 6)
    types = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]])
    expected = model(input_ids=ids, token_type_ids=types).logits
    torch.testing.assert_close(ours(ids, marks={"types": types}), expected)
    assert not torch.allclose(ours(ids), expected)


def test_global_tokens():
    model = TINY["Longformer"].build()
    ours, ids = load(model), torch.randint(5, VOCAB, (2, N))
    marked = torch.zeros(2, N, dtype=torch.bool)
    marked[0, 3] = marked[1, 0] = marked[1, 15] = True
    expected = model(input_ids=ids, global_attention_mask=marked.long()).logits
    found = ours(ids, marks={"is_global": marked})
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(ours(ids), expected, atol=1e-3)
