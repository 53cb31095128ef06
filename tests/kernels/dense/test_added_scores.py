"""Dot products plus a matrix of scores, through SDPA: equal to the plain form, and when it runs."""

import pytest
import torch

from weft.kernels.dense.added_scores import FUSED, MANY, can_add
from weft.kernels.planner.context import assumed, forced, recording
from weft.layers.positions import Alibi
from weft.mixers import Frame, Synthesizer

N = MANY + 6


def build(kinds="random", mixture="plus", **frame):
    torch.manual_seed(0)
    given = {"dim": 16, "heads": 4, "kv_heads": 2, "length": N, **frame}
    return Synthesizer(kinds=kinds, mixture=mixture).build(Frame(**given)).double()


def outputs(mixer, valid, kernel):
    x = torch.randn(3, N, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    with forced(kernel):
        y = mixer(x, valid=valid)
    return y, torch.autograd.grad(y.square().sum(), (x, *mixer.parameters()))


@pytest.mark.parametrize("kinds", ["random", "dense"])
@pytest.mark.parametrize("padded", [False, True])
def test_output_and_gradients_are_those_of_the_plain_form(kinds, padded):
    """Padding stands left, inside and right; the last row has one real token."""
    mixer, valid = build(kinds), None
    if padded:
        valid = torch.ones(3, N, dtype=torch.bool)
        valid[0, :9], valid[1, 20:30], valid[2, 1:] = False, False, False
    with recording() as choices:
        fused = outputs(mixer, valid, "sdpa")
    assert [choice.kernel for choice in choices if choice.operation == FUSED.operation] == ["sdpa"]
    torch.testing.assert_close(fused, outputs(mixer, valid, "torch"))


def test_a_row_of_padding_alone_stays_finite():
    mixer, valid = build(), torch.zeros(3, N, dtype=torch.bool)
    y, gradients = outputs(mixer, valid, "sdpa")
    assert not y.any()
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    "mixer",
    [
        build(mixture="none"),
        build(mixture="alpha"),
        build(kinds=("random", "dense")),
        build(causal=True),
        build(positions=Alibi()),
    ],
    ids=["no dot product", "alpha", "two matrices", "causal", "biased"],
)
def test_other_scores_take_the_plain_form_even_where_sdpa_is_forced(mixer):
    y, _ = outputs(mixer, None, "sdpa")
    torch.testing.assert_close(y, outputs(mixer, None, "torch")[0], rtol=0, atol=0)


def test_a_cpu_and_few_queries_and_other_dtypes_take_the_plain_form():
    v = torch.zeros(1, 2, N, 4, dtype=torch.bfloat16)
    assert not can_add(v, queries=N, plain=True), "a CPU"

    def said(dtype, queries, plain=True):
        with assumed("cuda"), recording() as choices:
            can_add(v.to(dtype), queries=queries, plain=plain)
        return choices[0]

    assert said(torch.bfloat16, MANY).kernel == "sdpa"
    for refused, reason in (
        (said(torch.float32, MANY), "takes bfloat16"),
        (said(torch.bfloat16, MANY - 1), f"got {MANY - 1}"),
        (said(torch.bfloat16, MANY, plain=False), "takes the dot product"),
    ):
        assert refused.kernel == "torch"
        assert reason in refused.rejected[0]
