"""What the tests of models are built from: small configs, and two mixers of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from weft.layers.embedding import Embedding
from weft.mixers import Frame, Mixer, State, Traits
from weft.models import Decoder, Encoder, Stack

DIM, VOCAB = 12, 11


def stack(**settings) -> Stack:
    frame = settings.pop("frame", {})
    settings = {"mixer": RunningMean(), "order": "sfsf", **settings}
    return Stack(frame=Frame(**{"dim": DIM, "heads": 3, "length": 40, **frame}), **settings)


def embedding(**settings) -> Embedding:
    return Embedding(**{"vocab": VOCAB, "positions": "sinusoidal", **settings})


def encoder(embed=None, **settings) -> Encoder:
    return Encoder(embedding=embedding(**embed or {}), stack=stack(**settings))


def decoder(embed=None, **settings) -> Decoder:
    return Decoder(embedding=embedding(**embed or {}), stack=stack(**settings))


def built(config, dtype=torch.float64, seed=0, **kwargs) -> nn.Module:
    """The module with every parameter stirred: no zero bias, no unit gain hides a mistake."""
    torch.manual_seed(seed)
    module = config.build(**kwargs)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module.to(dtype)


def lively(config) -> nn.Module:
    """An untied language model in which each token calls for another, and loud sublayers object.

    So greedy text neither stalls on one token nor hangs on the last one alone.
    """
    model = built(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sublayers" in name and parameter.dim() > 1:
                parameter.mul_(2.0)
        model.trunk.embedding.table.normal_(generator=torch.Generator().manual_seed(1))
        model.head.copy_(model.trunk.embedding.table.roll(1, 0))
    return model


def ids(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def gradients(module: nn.Module, loss: Tensor, *inputs: Tensor) -> dict[str, Tensor]:
    """The gradients of all parameters and of these inputs."""
    named = dict(module.named_parameters()) | {f"input {i}": x for i, x in enumerate(inputs)}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], **tolerance) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        try:
            torch.testing.assert_close(got[name], expected[name], **tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@dataclass
class Total(State):
    total: Tensor = None


@dataclass(frozen=True, kw_only=True)
class RunningMean:
    """out_i = W mean of the real tokens up to i (causal), or of all; across: of the context."""

    gain: float = 1.0

    name = "running_mean"
    traits = Traits(
        family="test", paper="none", time="n", memory="n", state="c", causal=True, cross=True
    )

    def build(self, frame: Frame) -> RunningMeanMixer:
        return RunningMeanMixer(self, frame)


class RunningMeanMixer(Mixer):
    def __init__(self, config, frame) -> None:
        super().__init__(config, frame)
        self.to_out = nn.Linear(frame.dim, frame.dim)

    def mix(self, x, valid, context, context_valid):
        source, real = (x, valid) if context is None else (context, context_valid)
        real = source.new_ones(source.shape[:2]) if real is None else real.to(source.dtype)
        source = source * real[..., None]
        if self.frame.causal and context is None:
            mean = source.cumsum(1) / real.cumsum(1).clamp(min=1)[..., None]
        else:
            mean = source.sum(1, keepdim=True) / real.sum(1).clamp(min=1)[:, None, None]
        return self.config.gain * self.to_out(mean.expand(-1, x.shape[1], -1))

    def start(self, batch=1):
        return Total(total=self.to_out.weight.new_zeros(batch, self.frame.dim))

    def step(self, x, state):
        totals = state.total[:, None] + x.cumsum(1)
        counts = torch.arange(1, x.shape[1] + 1) + state.position
        y = self.config.gain * self.to_out(totals / counts[:, None])
        return y, Total(position=state.position + x.shape[1], total=totals[:, -1])

    def state_size(self, tokens):
        return self.frame.dim


@dataclass(frozen=True, kw_only=True)
class Learner:
    """Scales by a running mean of |x| that each training forward updates, and adds noise."""

    name = "learner"
    traits = Traits(family="test", paper="none", time="n", memory="n", causal=True, cross=True)

    def build(self, frame: Frame) -> LearnerMixer:
        return LearnerMixer(self, frame)


class LearnerMixer(Mixer):
    def __init__(self, config, frame) -> None:
        super().__init__(config, frame)
        self.weight = nn.Parameter(torch.randn(frame.dim))
        self.register_buffer("level", torch.ones(()))

    def mix(self, x, valid, context, context_valid):
        y = x.sin() * self.weight / self.level.clone() + torch.randn_like(x) * x
        if self.training:
            self.level.mul_(0.5).add_(0.5 * x.detach().abs().mean())
        return y
