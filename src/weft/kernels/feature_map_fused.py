"""Causal linear attention by our own Triton kernels: features, sums and normalisation in one.

    out_i = Σ_{j≤i} (φ(q_i)·φ(k_j)) v_j / (Σ_{j≤i} φ(q_i)·φ(k_j) + ε),   φ as given or elu + 1

Nothing of the size n × features × width is ever written: a line is cut into as many segments as
fill the GPU, and the sums between segments are small. `feature_map.py` is the same, plainly.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.dense import expand_heads
from weft.kernels.joint import empty_like_heads

Feature = Literal["given", "elu"]
WIDTHS = (16, 32, 64, 128)
CHUNK = 64  # tokens of one step
WARPS = 4
PREFIX = 256  # numbers of the sums that one program of the prefix takes
_PROGRAMS = 264  # two for each multiprocessor of an H200: measured, with CHUNK and WARPS


def can_fuse(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernels take these: bfloat16 on a GPU, widths that are powers of two.

    float16 cannot hold gradients divided by sums over long sequences.
    """
    widths = q.shape[-1] in WIDTHS and v.shape[-1] in WIDTHS
    same = q.dtype == k.dtype == v.dtype == torch.bfloat16
    return q.is_cuda and same and widths and q.shape[2] == k.shape[2]


def fused_causal_attention(
    q: Tensor, k: Tensor, v: Tensor, *, feature: Feature = "given", eps: float = 1e-6
) -> Tensor:
    """(b, h, n, f), (b, g, n, f), (b, g, n, e) -> (b, h, n, e)."""
    heads = q.shape[1]
    return _Causal.apply(q, expand_heads(k, heads), expand_heads(v, heads), feature == "elu", eps)


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, elu: bool, eps: float) -> Tensor:
        from weft.kernels import feature_map_triton as kernels

        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        plan = _Plan(q, v, elu)
        before = plan.sums()
        plan(kernels.sums_kernel, (k, v, before), (k, v))
        plan.prefix(kernels.prefix_kernel, before, after=False)
        out, den = _like(q, v.shape[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)
        plan(kernels.forward_kernel, (q, k, v, out, den, before), (q, k, v, out), eps)
        ctx.save_for_backward(q, k, v, out, den, before)
        ctx.elu = elu
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels import feature_map_triton as kernels

        q, k, v, out, den, before = ctx.saved_tensors
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        plan, dden = _Plan(q, v, ctx.elu), torch.empty_like(den)
        dq, dk, dv = empty_like_heads((q, k, v))
        given, after = (q, k, v, out, dout), plan.sums()
        tensors = (*given, den, dden, before, after, dq)
        plan(kernels.query_gradient_kernel, tensors, (*given, dq))
        plan.prefix(kernels.prefix_kernel, after, after=True)
        given = (q, k, v, dout)
        tensors = (*given, den, dden, after, dk, dv)
        plan(kernels.key_gradient_kernel, tensors, (*given, dk, dv))
        return dq, dk, dv, None, None


class _Plan:
    """How the lines are cut, and the settings that all kernels share."""

    def __init__(self, q: Tensor, v: Tensor, elu: bool) -> None:
        b, self.heads, self.n, self.f = q.shape
        self.e, self.lines, self.q = v.shape[-1], b * self.heads, q
        wanted = max(1, _PROGRAMS // self.lines)
        chunks = -(-self.n // CHUNK)
        self.segment = -(-chunks // min(wanted, chunks)) * CHUNK
        self.segments = -(-self.n // self.segment)
        # Wide heads leave room in shared memory for two steps at a time, not three.
        stages = 3 if max(self.f, self.e) <= 64 else 2
        self.settings = {"W": CHUNK, "F": self.f, "E": self.e, "ELU": elu}
        self.settings |= {"num_warps": WARPS, "num_stages": stages}

    def sums(self) -> Tensor:
        """Room for S and z of every segment."""
        size = (self.lines, self.segments, self.f * self.e + self.f)
        return self.q.new_empty(size, dtype=torch.float32)

    def prefix(self, kernel: Any, sums: Tensor, *, after: bool) -> None:
        """Turn sums of segments into those before, or after, each, in place."""
        size = sums.shape[2]
        grid = (self.lines, -(-size // PREFIX))
        kernel[grid](sums, self.segments, size, BLOCK=PREFIX, AFTER=after)

    def __call__(
        self, kernel: Any, tensors: tuple[Tensor, ...], strided: tuple[Tensor, ...], *numbers: float
    ) -> None:
        """Start a kernel: its tensors, then those whose strides it wants."""
        strides = [x.stride(axis) for x in strided for axis in (0, 1, 2)]
        sizes = (self.heads, self.n, self.segment)
        kernel[(self.lines, self.segments)](*tensors, *strides, *sizes, *numbers, **self.settings)


def _like(x: Tensor, width: int) -> Tensor:
    """An empty (b, h, n, width) whose memory is (b, n, h, width): what a projection reads."""
    b, h, n, _ = x.shape
    return x.new_empty(b, n, h, width).transpose(1, 2)
