"""Feed-forwards inside whole models: saved, decoded, counted, initialised."""

import pytest
import torch
from model_parts import ids

from weft.arena.analysis.flops import forward_flops
from weft.feedforward import (
    FEEDFORWARDS,
    Chunked,
    Dense,
    GShard,
    MixtureOfExperts,
    ProductKey,
    Switch,
)
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack, load, save

DIM, LENGTH = 8, 12
PARTS = {
    "gated": Dense(activation="swiglu", hidden=12),
    "chunked": Chunked(tokens=3),
    "switch": Switch(experts=4),
    "gshard": GShard(experts=4),
    "moe": MixtureOfExperts(experts=4, top=2),
    "product_key": ProductKey(keys=4, top=2, heads=2, key_dim=4),
}


def model(*parts, **settings):
    """A language model whose two feed-forwards are these."""
    stack = Stack(frame=Frame(dim=DIM, heads=2), order="sfsf", feedforward=parts, **settings)
    embedding = Embedding(vocab=11, positions="sinusoidal")
    return LanguageModel(trunk=Decoder(embedding=embedding, stack=stack))


@pytest.mark.parametrize("name", sorted(PARTS))
def test_saved_and_loaded(name, tmp_path):
    torch.manual_seed(0)
    made = model(Dense(), PARTS[name]).build().eval()
    save(made, tmp_path / "model")
    again = load(tmp_path / "model").eval()
    assert again.config == made.config
    assert torch.equal(again(ids(2, LENGTH)), made(ids(2, LENGTH)))


@pytest.mark.parametrize("name", sorted(PARTS))
def test_decoding_equals_forward(name):
    torch.manual_seed(0)
    made = model(PARTS[name], PARTS[name]).build().double().train()
    made(ids(2, LENGTH))  # running statistics, if any, move
    made.eval()
    whole, state, found = made(ids(2, LENGTH)), made.start(2), []
    for part in ids(2, LENGTH).split([5, 1, 1, 5], dim=1):
        scores, state = made.step(part, state)
        found.append(scores)
    torch.testing.assert_close(torch.cat(found, 1), whole, rtol=0, atol=1e-11)


def test_experts_cost_what_one_costs():
    dense = forward_flops(model(Dense(), Dense()), LENGTH)
    router = 2 * LENGTH * DIM * 4
    assert forward_flops(model(Dense(), Switch(experts=4)), LENGTH) == dense + router
    ffn = 2 * LENGTH * 2 * DIM * 4 * DIM
    assert forward_flops(model(Dense(), GShard(experts=4)), LENGTH) == dense + router + ffn


def test_outputs_start_small():
    """The stack scales what writes into the residual stream, experts and values too."""
    for name in ("switch", "moe", "gshard", "product_key"):
        config = PARTS[name]
        torch.manual_seed(0)
        alone = [config.build(DIM, bias=True) for _ in range(200)]
        inside = [model(config, config).build().trunk.stack.sublayers[1].body for _ in range(50)]

        def spread(modules, name=name):
            out = [m.to_out if name == "product_key" else m.experts.to_out for m in modules]
            return torch.stack([part.weight.detach() for part in out]).std().item()

        assert spread(inside) == pytest.approx(spread(alone) / 2, rel=0.1)  # 1 / √4 sublayers


def test_every_registry_entry_trains_in_a_model():
    for name in FEEDFORWARDS:
        made = model(PARTS.get(name, FEEDFORWARDS[name]()), Dense()).build().train()
        made(ids(2, LENGTH)).square().mean().backward()
        grads = [p.grad for p in made.parameters() if p.grad is not None]
        assert all(grad.isfinite().all() for grad in grads)
