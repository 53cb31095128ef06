"""Twins compute what Transformers computes, with its own parameters, and can be undone."""

import copy

import numpy as np
import pytest
import torch
import transformers as T
from twin_models import CASES, inputs

from weft.errors import Unsupported
from weft.interop import accelerate
from weft.interop.hf.twins.lean import Twin


def run(model, given):
    """What the model says of real tokens, and its gradients."""
    given = dict(given)
    real = given.pop("real")
    out = model(**given)
    shown = out.logits if hasattr(out, "logits") else out.last_hidden_state
    shown = shown if real is None or shown.shape[1] != real.shape[1] else shown[real]
    model.zero_grad()
    if (
        model.training or model.config.model_type != "reformer"
    ):  # its layers learn in training alone
        shown.square().sum().backward()
    return shown.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def twins(model):
    """The methods that are replaced."""
    return [key for p in model.modules() for key, x in vars(p).items() if isinstance(x, Twin)]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("case", CASES)
def test_is_theirs(case, training):
    torch.manual_seed(0)
    model = CASES[case]().train(training)
    given = inputs(case, model)
    names = list(model.state_dict())
    expected, theirs = run(model, given)
    assert accelerate(model) is model
    assert list(model.state_dict()) == names
    assert twins(model)
    found, ours = run(model, given)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    assert ours.keys() == theirs.keys()
    for name, grad in ours.items():
        near = 1e-4 * max(1.0, float(theirs[name].abs().max()))
        torch.testing.assert_close(grad, theirs[name], rtol=1e-3, atol=near, msg=name)
    assert torch.equal(run(copy.deepcopy(model), given)[0], found)
    accelerate(model, undo=True)
    assert torch.equal(run(model, given)[0], expected)
    assert not twins(model)


def test_draws_leave_numpy_alone():
    torch.manual_seed(0)
    model = accelerate(CASES["bigbird"]().train())
    np.random.seed(5)
    expected = np.random.get_state()[1].copy()
    run(model, inputs("bigbird", model))
    assert (np.random.get_state()[1] == expected).all()


def test_maps_are_refused():
    torch.manual_seed(0)
    model = accelerate(CASES["longformer"]().eval())
    given = inputs("longformer", model)
    given.pop("real")
    with pytest.raises(Unsupported, match="computes no attention maps"):
        model(**given, output_attentions=True)


def test_others_are_refused():
    model = T.BertModel(T.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1))
    with pytest.raises(
        Unsupported, match=r"no twin for the attention of BertModel; it has for .*BigBird"
    ):
        accelerate(model)
