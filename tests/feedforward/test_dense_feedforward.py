import math

import pytest
import torch

from weft.config import write
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS, Dense

# The activations from their equations, on one Python number.
EQUATIONS = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "swish": lambda x: x / (1 + math.exp(-x)),
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "squared_relu": lambda x: max(0.0, x) ** 2,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("activation", sorted(EQUATIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_is_its_equation(activation, bias):
    module = Dense(activation=activation, expansion=1.5).build(4, bias=bias).double()
    x = 2 * torch.randn(2, 3, 4, dtype=torch.float64)
    parameters = dict(module.named_parameters())
    hidden = torch.einsum("bnc,hc->bnh", x, parameters["to_hidden.weight"])
    hidden = hidden + parameters["to_hidden.bias"] if bias else hidden
    assert hidden.shape == (2, 3, 6)
    active = torch.empty_like(hidden)
    for index in torch.cartesian_prod(*map(torch.arange, hidden.shape)).tolist():
        active[tuple(index)] = EQUATIONS[activation](hidden[tuple(index)].item())
    expected = torch.einsum("bnh,ch->bnc", active, parameters["to_out.weight"])
    expected = expected + parameters["to_out.bias"] if bias else expected
    torch.testing.assert_close(module(x), expected)
    assert len(parameters) == (4 if bias else 2)


def test_every_activation_has_its_equation_here():
    from weft.feedforward.dense import ACTIVATIONS

    assert set(ACTIVATIONS) == set(EQUATIONS)


def test_dropout_acts_on_hidden_units_in_training_only():
    module = Dense(activation="relu").build(8, dropout=0.5).double()
    x = torch.randn(1, 1, 8, dtype=torch.float64)
    plain = module.eval()(x)
    torch.manual_seed(1)
    dropped = module.train()(x)
    torch.manual_seed(1)
    kept = torch.nn.functional.dropout(torch.ones(1, 1, 32, dtype=torch.float64), 0.5)
    hidden = torch.relu(module.to_hidden(x)) * kept
    torch.testing.assert_close(dropped, module.to_out(hidden))
    assert not torch.allclose(dropped, plain)


@pytest.mark.parametrize("name", list(FEEDFORWARDS))
def test_three_forms_of_a_config(name):
    config = FEEDFORWARDS[name]()
    assert FEEDFORWARDS.parse(str(config)) == config
    assert FEEDFORWARDS.read(write(config)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 0}, "at least 1; got hidden=0"),
        ({"activation": "swiglo"}, "did you mean 'swiglu'"),
        ({"activation": "gelo"}, "no activation named 'gelo'; did you mean 'gelu'"),
        ({"expansion": 0}, "above 0; got 0"),
    ],
)
def test_refuses(settings, message):
    with pytest.raises(WeftError, match=message):
        Dense(**settings)
