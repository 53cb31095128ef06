"""Counted operations: against torch's own counter on real attention, and closed formulas."""

import dataclasses
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from weft.arena.analysis import flops
from weft.arena.analysis.flops import flops_per_token, forward_flops, pattern_flops
from weft.kernels.attend.api import attend
from weft.kernels.planner.context import replaced
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Classifier, Decoder, Encoder, LanguageModel, Matcher, Stack
from weft.patterns import Causal, Full, PerHead, Sliding
from weft.patterns.derive import mask

DIM, HEADS, CLASSES = 16, 2, 5
N = 24


def model(mixer, trunk=Encoder, registers=0, layers=2):
    stack = Stack(frame=Frame(dim=DIM, heads=HEADS, length=N), order="sf" * layers, mixer=mixer)
    return trunk(embedding=Embedding(vocab=7, registers=registers), stack=stack)


def classifier(mixer, **given):
    return Classifier(trunk=model(mixer, **given), classes=CLASSES)


def matrices(n, layers=2):
    """Projections (4c²) and feed-forward (8c²) of each token, and the head."""
    return layers * n * 2 * 12 * DIM**2 + 2 * DIM * CLASSES


def unfused(config, n):
    """Torch's counter over attention that is two visible products."""
    module = config.build().eval()
    plain = lambda q, k, v, *_, **__: torch.nn.functional.scaled_dot_product_attention(q, k, v)  # noqa: E731  # one line, used once
    counter = FlopCounterMode(display=False)
    with replaced(plain), sdpa_kernel(SDPBackend.MATH), torch.no_grad(), counter:
        module(torch.zeros(1, n, dtype=torch.long))
    return counter.get_total_flops()


def test_dense_attention_agrees_with_torch_and_with_the_formula():
    config = classifier("full")
    assert forward_flops(config, N) == unfused(config, N)
    assert forward_flops(config, N) == matrices(N) + 2 * 4 * N * N * DIM


def test_a_count_without_attention_is_noticed(monkeypatch):
    monkeypatch.setattr(flops, "pattern_flops", lambda *_: 0)
    config = classifier("full")
    assert forward_flops(config, N) != unfused(config, N)


@pytest.mark.parametrize("mixer", ["sliding_window(window=4)", "longformer(window=4)"])
def test_a_pattern_costs_its_pairs(mixer):
    seen = mask(Sliding(4), N)[0].sum().item()
    extra = 0
    if mixer.startswith("longformer"):
        # The first key is read by all; its own row reads all, with projections of its own.
        seen = (mask(Sliding(4), N)[0] | (torch.arange(N) == 0)).sum().item() + N
        extra = 2 * DIM**2 * (2 * N + 1)
    assert forward_flops(classifier(mixer), N) == matrices(N) + 2 * (4 * seen * DIM + extra)


def test_registers_are_tokens_too():
    config = classifier("full", registers=3)
    assert forward_flops(config, N) == matrices(N + 3) + 2 * 4 * (N + 3) ** 2 * DIM


def test_training_is_three_forward_passes():
    config = classifier("full")
    assert flops_per_token(config, N) == 3 * forward_flops(config, N) / N
    pair = Matcher(trunk=model("full"))
    head = 2 * 4 * DIM * DIM + 2 * DIM * 2
    trunks = 2 * (matrices(N) - 2 * DIM * CLASSES + 2 * 4 * N * N * DIM)
    assert flops_per_token(pair, N) == 3 * (trunks + head) / (2 * N)


def test_a_language_model_sees_half_the_pairs():
    config = LanguageModel(trunk=model("full", trunk=Decoder))
    pairs = N * (N + 1) // 2
    body = matrices(N) - 2 * DIM * CLASSES + 2 * 4 * pairs * DIM
    assert forward_flops(config, N) == body + 2 * N * DIM * 7


def test_fourier_transforms_count():
    """One over the channels of every token, one over the tokens for every channel: 5·N·log2 N."""
    both = 5 * N * DIM * (math.log2(DIM) + math.log2(N))
    found = forward_flops(classifier("fnet", layers=1), N) - 2 * DIM * CLASSES - N * 16 * DIM**2
    assert both / 2 <= found <= both


def test_a_mixer_may_return_a_parameter():
    """Learned scores cost nothing: values and output (2c²), feed-forward (8c²), one product."""
    found = forward_flops(classifier("synthesizer(kinds='random')", layers=1), N)
    assert found == N * 2 * 10 * DIM**2 + 2 * N * N * DIM + 2 * DIM * CLASSES


def test_heads_with_patterns_of_their_own():
    pattern = PerHead(Sliding(3), Causal())
    seen = mask(pattern, N, heads=2).sum().item()
    assert pattern_flops(pattern, (5, 2, N, 8), (5, 2, N, 8)) == 5 * seen * 2 * 16
    assert pattern_flops(Full(), (1, 2, 3, 8), (1, 2, N, 8)) == 2 * 3 * N * 2 * 16


@pytest.mark.parametrize("mixer", ["full", "longformer(window=4)", "linformer", "reformer", "fnet"])
def test_without_numbers_and_with_them_is_the_same(mixer):
    config = classifier(mixer)
    assert flops._counted(config, N, "meta") == flops._counted(config, N, "cpu")


def test_a_mechanism_that_looks_at_numbers_is_counted():
    assert forward_flops(classifier("linear_transformer"), N) > matrices(N)


def test_a_repeated_block_counts_every_step():
    """Halting is not foreseen: a universal stack counts as if every token took all steps."""
    plain = classifier("full", layers=3)
    repeated = classifier("full", layers=1)
    stack = dataclasses.replace(repeated.trunk.stack, depth="universal(steps=3)")
    trunk = dataclasses.replace(repeated.trunk, stack=stack)
    halting = 3 * N * 2 * DIM
    counted = forward_flops(Classifier(trunk=trunk, classes=CLASSES), N)
    assert counted == forward_flops(plain, N) + halting


def test_attention_is_put_back():
    q = torch.randn(1, 1, 3, 4)

    def fail():
        with replaced(lambda *_: None):
            assert attend(q, q, q) is None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert attend(q, q, q).shape == q.shape
