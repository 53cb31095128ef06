"""LayerDrop: what is skipped, by whom, and what its parameters learn then."""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import layer_drop_rank
import pytest
import torch
from model_parts import DIM, RunningMean, built, decoder, encoder, ids, normal, stack

from weft.errors import Unsupported, WeftError
from weft.mixers import MIXERS
from weft.models import EncoderDecoder, LayerDrop, load, save
from weft.models.stack.sublayer import StackInputs

HERE = Path(__file__).parent


def dropping(rate=0.5, order="sf" * 6, **settings):
    config = stack(order=order, depth=LayerDrop(rate=rate), **settings)
    return built(config, causal=True)


def through(module, x, kept):
    """The stack by hand: these layers and no others."""
    for layer, runs in zip(module.layers, kept, strict=True):
        for i in layer if runs else ():
            x = module.running[i](x, StackInputs())
    return module.norm(x)


def test_skips_whole_layers_and_rescales_nothing():
    module, x = dropping().train(), normal(2, 5, DIM)
    seen = set()
    for step in range(6):
        got, kept = module(x), module.depth.kept
        assert kept == module.config.depth.kept(6, step, "decoder")
        torch.testing.assert_close(got, through(module, x, kept), rtol=1e-12, atol=1e-12)
        seen.add(tuple(kept))
    assert len(seen) > 3  # another draw at each forward


def test_evaluation_runs_every_layer():
    module, x = dropping(rate=0.9).eval(), normal(2, 5, DIM)
    assert torch.equal(module(x), through(module, x, [True] * 6))


def test_skips_with_its_probability():
    config = LayerDrop(rate=0.3)
    kept = [one for step in range(2000) for one in config.kept(6, step, "encoder")]
    assert sum(kept) / len(kept) == pytest.approx(0.7, abs=0.02)
    assert config.kept(6, 3, "encoder") != config.kept(6, 3, "decoder") or (
        config.kept(6, 4, "encoder") != config.kept(6, 4, "decoder")
    )
    assert [LayerDrop(rate=0.5, seed=s).kept(9, 0, "encoder") for s in (1, 2)] == [
        LayerDrop(rate=0.5, seed=s).kept(9, 0, "encoder") for s in (1, 2)
    ]


def test_a_step_that_is_named_is_drawn_again():
    module, x = dropping().train(), normal(2, 5, DIM)
    module.depth.draw(7)
    first, again = module(x), module(x)
    assert torch.equal(first, again)
    other = copy.deepcopy(module)
    module.depth.draw(8)
    assert not torch.equal(module(x), first)
    other.depth.draw(7)
    assert torch.equal(other(x), first)


def test_skipped_parameters_get_zeros():
    module, x = dropping().train(), normal(2, 5, DIM)
    module.depth.draw(next(s for s in range(99) if not all(_kept(module, s))))
    module(x).square().sum().backward()
    for layer, runs in zip(module.layers, module.depth.kept, strict=True):
        grads = [p.grad for i in layer for p in module.running[i].parameters()]
        assert all(grad is not None for grad in grads)
        assert any(grad.any() for grad in grads) == runs


def test_an_encoder_that_no_layer_reads_gets_zeros():
    config = EncoderDecoder(
        encoder=encoder(order="sf"), decoder=decoder(order="scf", depth=LayerDrop(rate=0.9))
    )
    model = built(config).train()
    assert model.decoder.stack.depth.config.kept(1, 0, "decoder") == [False]
    model(ids(2, 5), source=ids(2, 4)).square().sum().backward()
    for name, parameter in model.encoder.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any()


def _kept(module, step):
    return module.config.depth.kept(6, step, "decoder")


def test_where_python_cannot_decide_a_coin_does():
    """One compiled graph for all draws; skipped layers change nothing, and get zeros."""
    module, x = dropping(order="sf" * 3).train(), normal(2, 5, DIM)
    module.depth.draw(0)
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(module, backend=counting, fullgraph=True)
    for step in range(5):
        module.depth.draw(step)
        module.zero_grad()
        got = compiled(x)
        got.square().sum().backward()
        expected = through(module, x, module.depth.kept)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
        for layer, runs in zip(module.layers, module.depth.kept, strict=True):
            grads = [p.grad for i in layer for p in module.running[i].parameters()]
            assert any(grad.any() for grad in grads) == runs
    assert len(graphs) == 1


def ranks(tmp_path, twin):
    """Both ranks' answers, or None if one failed."""
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
    }
    command = [sys.executable, str(HERE / "layer_drop_rank.py")]
    running = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / twin), twin],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        found = [process.communicate(timeout=240) for process in running]
    finally:  # one that hangs must not disturb the tests after it
        for process in running:
            with process:
                process.kill()
    if any(process.returncode for process in running):
        return None, "".join(error for _, error in found)
    return [json.loads(out.splitlines()[-1]) for out, _ in found], ""


def test_two_ranks_skip_the_same_layers_and_wait_for_no_one(tmp_path):
    answers, errors = ranks(tmp_path, "none")
    assert answers, errors
    first, second = answers
    assert first == second
    assert any(not all(kept) for kept in first["kept"])
    alone = layer_drop_rank.build(seed=0)
    for step, (kept, gradients) in enumerate(zip(first["kept"], first["gradients"], strict=True)):
        alone.depth.draw(step)
        assert alone.depth.kept == kept
        alone.zero_grad()
        for rank in range(2):
            (alone(layer_drop_rank.data(rank, step)).square().sum() / 2).backward()
        assert gradients == pytest.approx(
            [float(p.grad.square().sum()) for p in alone.parameters()]
        )


@pytest.mark.long
def test_ranks_notice_a_seed_of_their_own(tmp_path):
    answers, errors = ranks(tmp_path, "own_seed")
    assert answers, errors
    assert answers[0]["kept"] != answers[1]["kept"]


@pytest.mark.long
def test_ranks_notice_missing_gradients(tmp_path):
    answers, errors = ranks(tmp_path, "no_gradients")
    assert answers is None
    assert "finished reduction" in errors or "NoneType" in errors


def test_decodes_and_saves(tmp_path):
    config = decoder(order="sf" * 3, mixer=MIXERS["full"](), depth="layer_drop(rate=0.4, seed=3)")
    model, x = built(config).eval(), ids(2, 8)
    first, state = model.step(x[:, :3], model.start(2))
    rest, _ = model.step(x[:, 3:], state)
    torch.testing.assert_close(torch.cat((first, rest), dim=1), model(x))
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    assert torch.equal(again(x), model(x))


def test_checkpoints_give_the_same_gradients():
    x, found = normal(2, 5, DIM), []
    for recompute in ("nothing", "checkpoint"):
        module = dropping(recompute=recompute).train()
        module.depth.draw(5)
        module(x).square().sum().backward()
        found.append([p.grad for p in module.parameters()])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"depth": "layer_drop(rate=1.0)"}, WeftError, r"in \[0, 1\); got rate=1.0"),
        ({"depth": "layerdrop"}, WeftError, "did you mean 'layer_drop'"),
        ({"depth": "layer_drop", "recompute": "reversible"}, Unsupported, "every layer once"),
    ],
)
def test_refuses(settings, error, message):
    with pytest.raises(error, match=message):
        stack(mixer=RunningMean(), **settings)
