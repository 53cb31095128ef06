"""Native decoding gives the scores and tokens of the torch model with the same rounded weights."""

import numpy as np
import pytest
import torch
from native_models import VOCAB, small_model, sparse_model

from weft import native
from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense, Sparse, WithSRU
from weft.generate import Sampling
from weft.layers.norm import Norm
from weft.layers.outputs import SparseLinear
from weft.layers.positions import Rope
from weft.mixers import SlidingWindow

pytestmark = pytest.mark.skipif(native.available() is not None, reason="no C++ compiler")

MODELS = {
    "dense": {},
    "rms_rope": {"norm": Norm(kind="rms"), "positions": Rope()},
    "neighbours_no_bias": {"positions": Rope(interleaved=True), "bias": False},
    "learned_untied": {"added": "learned", "tied": False},
    "sinusoidal_grouped": {"added": "sinusoidal", "kv_heads": 2},
    "one_key_head": {"kv_heads": 1, "head_dim": 10, "positions": Rope()},
    "post": {"norm": Norm(place="post")},
    "reversible": {"recompute": "reversible", "feedforward": Dense(activation="relu")},
    "window": {"mixer": SlidingWindow(window=5)},
    "window_sinks": {"mixer": SlidingWindow(window=6, sinks=2), "positions": Rope()},
    "swiglu": {"feedforward": Dense(activation="swiglu")},
    "liglu": {"feedforward": Dense(activation="liglu")},
    "gelu_tanh": {"feedforward": Dense(activation="gelu_tanh")},
    "sparse_feedforward": {"feedforward": Sparse(block=8)},
    "sru": {"feedforward": WithSRU(inner=Sparse(block=4), units=6), "norm": Norm(kind="rms")},
    "multiplicative": {"projection": "multiplicative(modules=4, out=true)", "kv_heads": 2},
    "sandwich": {"order": "ssfsff"},
}
SPARSE = {
    "conv": {},
    "conv_out": {"projection": "multiplicative_conv(modules=2, out=true)", "positions": Rope()},
    "conv_wide": {"projection": "multiplicative_conv(modules=16, length=4, width=5)"},
    "conv_post": {"norm": Norm(place="post")},
    "terraformer": {"recompute": "reversible", "positions": Rope()},
    "factored_output": {"output": SparseLinear(modules=3), "tied": False},
    "deep": {  # products over more than 256 numbers, heads of 64, strips of 16 and 4 modules
        "dim": 320,
        "heads": 5,
        "projection": "multiplicative_conv(modules=20)",
        "output": SparseLinear(modules=6),
        "tied": False,
    },
}


def made(name):
    return small_model(**MODELS[name]) if name in MODELS else sparse_model(**SPARSE[name])


def native_scores(model, ids, split):
    state, found = model.start(len(ids)), []
    for part in ids.split(split, dim=1):
        scores, state = model.step(part, state)
        found.append(scores)
    return torch.cat(found, dim=1)


def distance(model, torch_model, ids, split):
    """How far native scores are from float64 ones, and float32 torch ones, in units of the last."""
    with torch.no_grad():
        plain = torch_model(ids)
        exact = torch_model.double()(ids)
        torch_model.float()
    budget = (plain - exact).abs().max() + torch.finfo(torch.float32).eps * exact.abs().max()
    return ((native_scores(model, ids, split) - exact).abs().max() / budget).item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("name", [*MODELS, *SPARSE])
def test_scores_equal_those_of_torch(name, dtype):
    model = native.compile(made(name), dtype=dtype)
    ids = torch.randint(VOCAB, (2, 24))
    assert distance(model, model.as_torch(), ids, [1, 1, 6, 15, 1]) < 8


def test_large_scores_do_not_overflow():
    """The largest of all scores is taken off, wherever it stands: e to the others is at most 1."""
    model = made("dense")
    with torch.no_grad():
        for sublayer in model.trunk.stack.sublayers:
            if sublayer.letter == "s":
                sublayer.body.project.to_q.weight.mul_(300)
    ids = torch.randint(VOCAB, (2, 60))
    assert distance(native.compile(model), model, ids, [59, 1]) < 8


@pytest.mark.parametrize("name", ["dense", "conv"])
def test_wrong_weights_are_noticed(name):
    model = made(name)
    compiled = native.compile(model)
    next(p for p in model.parameters() if p.dim() == 4 or p.shape == (64, 32)).data.mul_(1.01)
    assert distance(compiled, model, torch.randint(VOCAB, (2, 24)), [24]) > 100


def test_a_long_prompt_is_read_in_any_split():
    ids = torch.randint(VOCAB, (2, 700))
    for name in ("window_sinks", "conv", "dense"):
        model = native.compile(made(name))
        whole = native_scores(model, ids, [700])
        torch.testing.assert_close(native_scores(model, ids, [257, 100, 343]), whole)
        assert distance(model, model.as_torch(), ids, [300, 400]) < 8


@pytest.mark.parametrize("cache", ["bfloat16", "int8"])
def test_a_cheap_cache_rounds_keys_and_values(cache):
    source = made("rms_rope")
    ids = torch.randint(VOCAB, (2, 40))
    exact = native_scores(native.compile(source), ids, [40])
    cheap = native_scores(native.compile(source, cache=cache), ids, [40])
    error = (cheap - exact).abs().max() / exact.abs().max()
    assert 1e-6 < error < 2e-2


@pytest.mark.parametrize("name", ["dense", "terraformer"])
def test_the_same_greedy_tokens_over_a_thousand_steps(name):
    source = made(name)
    grown = native.compile(source).generate(torch.randint(VOCAB, (2, 3)), 1000)
    # By induction: torch, reading all of it at once, would have written the same after each token.
    with torch.no_grad():
        best = source(grown).argmax(-1)
    assert torch.equal(best[:, 2:-1], grown[:, 3:])
    assert torch.equal(source.generate(grown[:, :3], 60), grown[:, :63])


def test_sampling_draws_what_torch_draws():
    source = made("sparse_feedforward")
    prompt = torch.randint(VOCAB, (3, 4))
    settings = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 5}
    drawn = native.compile(source).generate(prompt, 60, **settings)
    assert torch.equal(drawn, source.generate(prompt, 60, **settings))


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.7}, {"temperature": 2.0, "top_k": 5}, {"temperature": 1.0, "top_p": 0.5}],
    ids=["all", "top_k", "top_p"],
)
def test_the_library_draws_as_sampling_does(settings):
    model, sampling = native.compile(made("dense")), Sampling(**settings, seed=3)
    ours, theirs = (sampling.generators(3) for _ in range(2))
    here, there = model.start(3), model.start(3)
    tokens = np.array([1, 2, 3])
    for _ in range(50):
        scores = there.feed(tokens[:, None].tolist())
        tokens = here.draw(tokens, sampling, ours)
        assert tokens.tolist() == sampling.pick(scores, theirs).tolist()
    with pytest.raises(Unsupported, match="top_k and top_p"):
        here.draw(tokens, Sampling(temperature=1.0, min_p=0.1), ours)


def test_ragged_prompts_come_out_as_if_alone():
    source = made("conv")
    model = native.compile(source)
    prompts = [torch.randint(VOCAB, (n,)) for n in (2, 7, 2, 1)]
    together = model.generate(prompts, 20)
    alone = [source.generate(row[None], 20)[0] for row in prompts]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_rows_of_different_lengths_advance_in_one_call():
    source = made("rms_rope")
    model = native.compile(source)
    rows = [torch.randint(VOCAB, (n,)).tolist() for n in (5, 1, 9)]
    state = model.start(3)
    state.feed(rows)
    scores = state.feed([[1], [2, 3], [4]])
    for row, more, found in zip(rows, ([1], [2, 3], [4]), scores, strict=True):
        alone = model.start(1)
        torch.testing.assert_close(alone.feed([row + more])[0], found)
    assert state.lengths == [6, 3, 10]


def test_states_are_copied_and_gathered():
    model = native.compile(made("conv"))
    state = model.start(2)
    state.feed([[1, 2, 3], [4, 5]])
    other = state.select([1, 1, 0])
    state.feed([[7], [8]])
    again = model.start(1)
    torch.testing.assert_close(other.feed([[9], [9], [9]])[1], again.feed([[4, 5, 9]])[0])
    joined = native.gather([(other, 2), (state, 0)])
    assert joined.lengths == [4, 4]


def test_a_window_keeps_no_more_than_its_ring():
    model = native.compile(made("window"))
    state = model.start(1)
    state.feed([[1] * 300])
    kept = state.cache_bytes()
    state.feed([[1] * 1500])
    assert state.cache_bytes() == kept


@pytest.mark.parametrize("name", ["dense", "terraformer", "factored_output"])
def test_results_do_not_depend_on_threads_or_batch_mates(name):
    model, ids = native.compile(made(name)), torch.randint(VOCAB, (3, 9))
    try:
        native.set_threads(1)
        one = native_scores(model, ids, [9])
        native.set_threads(3)
        assert torch.equal(native_scores(model, ids, [9]), one)
    finally:
        native.set_threads(None)


@pytest.mark.parametrize("level", ["portable", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same(level):
    best = native.level()
    try:
        native.set_level(level)
    except WeftError:
        pytest.skip(f"this machine has no {level}")
    try:
        for name, dtype in (("rms_rope", "float32"), ("terraformer", "bfloat16"), ("conv", "int8")):
            model = native.compile(made(name), dtype=dtype)
            assert distance(model, model.as_torch(), torch.randint(VOCAB, (2, 12)), [5, 7]) < 8
    finally:
        native.set_level(best)


def test_an_output_in_int8_leaves_the_embedding_alone():
    source = made("dense")
    model = native.compile(source, output="int8")
    parts = model.parts()
    assert parts["embedding"]["dtype"] == "float32"
    assert parts["output"]["dtype"] == "int8"
    assert parts["output"]["bytes"] == VOCAB * (32 + 4)


def test_a_profile_counts_the_bytes_that_are_read():
    model = native.compile(made("sparse_feedforward"))
    state = model.start(1)
    state.feed([[1, 2, 3]])
    state.profile()
    state.feed([[4]])
    found = state.profile()
    assert found["logits"]["bytes"] == VOCAB * 32 * 4
    assert found["qkv"]["bytes"] == 2 * 3 * 32 * 32 * 4
    assert found["attention"]["bytes"] == 2 * 4 * 2 * 32 * 4
    low, logits, hidden = 16 * 32 * 4, 128 * 16 * 4, 128 // 8 * 32 * 4
    assert found["controller"]["bytes"] == 2 * low
    read = found["feedforward"]["bytes"]
    assert 2 * (logits + hidden) <= read < 2 * (logits + 2 * hidden)
