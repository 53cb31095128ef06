"""Causal linear attention by our own Triton kernels: features, sums and normalisation in one.

    out_i = Σ_{j≤i} A_ij v_j / max(Σ_{j≤i} A_ij + ε, floor)
    A_ij = (φ(q_i)·φ(k_j)) w_j exp(a_{j+1} + … + a_i)

φ is as given, elu + 1, or made of random directions (`Random`); then features exist in a tile at a
time and are never written. w and a weigh and forget keys, and are learned where they require a
gradient. `reference.py` is the same in plain torch. Sums between chunks are saved for the
gradient: n / chunk · f · e numbers per head, in bfloat16.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.adjacent import empty_like_heads
from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS
from weft.kernels.dense.reference import expand_heads
from weft.kernels.launch import on_grid, unit_stride
from weft.kernels.planner.fast import FastKernel, Rule
from weft.kernels.running_max import running_max


class KernelLaunch(NamedTuple):
    """Settings of one kernel."""

    warps: int
    stages: int  # at most; fewer where shared memory is short
    registers: int | None = None  # of a thread, at most, with values no wider than 64


class LaunchSettings(NamedTuple):
    """How lines are cut, and how each kernel is started."""

    chunk: int  # tokens that one program takes at a time
    tile: int  # features, likewise
    programs: int  # that walk segments: some for each of an H200's 132 multiprocessors
    sums: KernelLaunch
    forward: KernelLaunch
    backward: KernelLaunch


# 168 registers, some spilled, let three backward programs share a multiprocessor, not two.
GIVEN = LaunchSettings(
    64,
    64,
    264,
    sums=KernelLaunch(4, 3),
    forward=KernelLaunch(4, 2),
    backward=KernelLaunch(4, 2, 168),
)
# Making features takes registers, which smaller tiles leave.
RANDOM = LaunchSettings(
    64, 32, 1056, sums=KernelLaunch(4, 2), forward=KernelLaunch(4, 2), backward=KernelLaunch(4, 2)
)
# Heads wider than NARROW. Products of 64 rows run asynchronously (wgmma). This wide, by Triton 3.6
# and its ptxas 12.8, they made an illegal access on an H200, though all addresses of the PTX are
# right (like github.com/triton-lang/triton/issues/11366). Products of 32 rows are synchronous.
WIDE = LaunchSettings(
    32, 32, 1056, sums=KernelLaunch(4, 2), forward=KernelLaunch(4, 2), backward=KernelLaunch(4, 2)
)
NARROW = 64
PREFIX = 256  # numbers of the sums that one program of the prefix takes
SHARED = 200 * 1024  # bytes of shared memory that a program may take; an H200 has 227 KiB
RELU_FLOOR = 1e-3  # added to relu features, so that no weight is 0


class Random(NamedTuple):
    """Features of random directions ω, f of them per head.

    exp: exp(s·ω·x − ‖s·x‖² / 2), of keys over the largest so far; relu: max(0, s·ω·x) + RELU_FLOOR;
    trig: f^−½ [sin(s·ω·y), cos(s·ω·y)], y = σ ∘ x / ‖x‖, twice as many. σ may be learned, ω not.
    """

    kind: Literal["exp", "relu", "trig"]
    directions: Tensor  # (g, f, d)
    scale: float = 1.0  # s
    unit: Tensor | None = None  # (g, d), σ of trig


Feature = Literal["given", "elu"] | Random


# float16 cannot hold gradients divided by sums over long sequences.
FUSED = FastKernel("linear attention", dtypes=(torch.bfloat16,))


def can_fuse(
    q: Tensor, k: Tensor, v: Tensor, feature: Feature = "given", *, causal: bool = True
) -> bool:
    """Whether the kernels take these (b, _, n, _): widths of features as given are free."""
    d, e, n, m = q.shape[-1], v.shape[-1], q.shape[2], k.shape[2]
    random = isinstance(feature, Random)
    rules = (
        Rule(causal, "is for causal attention"),
        Rule(e in WIDTHS, "takes values of 16, 32, 64 and 128 channels", e),
        Rule(not random or d in WIDTHS, TAKES_WIDTHS, d),
        Rule(n == m, "reads one sequence", (n, m)),
    )
    return FUSED.takes(q, k, v, rules=rules)


def fused_causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    feature: Feature = "given",
    valid: Tensor | None = None,
    weight: Tensor | None = None,
    log_decay: Tensor | None = None,
    eps: float = 1e-6,
    floor: float | None = None,
) -> Tensor:
    """(b, h, n, f or d), (b, g, n, f or d), (b, g, n, e) -> (b, h, n, e).

    `valid` (b, n) is True where a key is real; `weight` w and `log_decay` a ≤ 0 are (b, g, n).
    """
    heads = q.shape[1]
    if valid is not None:
        hidden = ~valid[:, None, :, None]
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
        real = valid[:, None].expand(k.shape[:3])  # (b, g, n)
        weight = real.float() if weight is None else weight * real
    k, v = expand_heads(k, heads), expand_heads(v, heads)
    q, k, v = (unit_stride(x) for x in (q, k, v))
    plan = _FeatureMapRun(q, v, feature, eps, floor)
    unit, shift_q, shift_k = None, None, None
    if isinstance(feature, Random) and feature.kind == "trig":
        assert feature.unit is not None  # σ belongs to this kind
        unit = expand_heads(feature.unit.float()[None], heads)[0].contiguous()  # (h, d)
    if plan.kind == "exp":
        shift_q, shift_k, fall = plan.shifts(q, k)
        log_decay = fall if log_decay is None else fall + expand_heads(log_decay, heads)
    if weight is not None or log_decay is not None:
        one, none = (torch.full(plan.shape, x, **plan.exact) for x in (1.0, 0.0))
        weight = one if weight is None else _rows(weight, heads)
        log_decay = none if log_decay is None else _rows(log_decay, heads)
    return _Causal.apply(q, k, v, unit, shift_q, shift_k, weight, log_decay, plan)


class _Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        from weft.kernels.linear_attention import kernels

        unit, shift_q, shift_k, weight, decay, plan = rest
        before, out = plan.sums(decay), _like(q, v.shape[-1])
        den = q.new_empty(q.shape[:3], dtype=torch.float32)
        rows = (unit, shift_k, weight, decay, None, None)
        plan.run_sums(kernels, (k, v, None), rows, before, after=False)
        plan.start(
            kernels.forward_kernel,
            (q, k, v, out),
            (plan.directions, unit, shift_q, shift_k, weight, decay, den, *before[:4]),
            (plan.scale, plan.amount, plan.floor, plan.eps),
            plan.settings.forward,
            GATED=decay is not None,
        )
        ctx.save_for_backward(q, k, v, out, den, unit, shift_q, shift_k, weight, decay, *before)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        from weft.kernels.linear_attention import kernels

        q, k, v, out, den, unit, shift_q, shift_k, weight, decay, *before = ctx.saved_tensors
        plan, dden, after = ctx.plan, torch.empty_like(den), ctx.plan.sums(decay)
        dout = unit_stride(dout)
        rows = (unit, shift_q, None, decay, den, dden)
        plan.run_sums(kernels, (q, dout, out), rows, after, after=True)
        dq, dk, dv = empty_like_heads((q, k, v))
        learned = any(ctx.needs_input_grad[6:8])
        dunit = None
        if unit is not None:
            dunit = unit.new_empty(*plan.shape[:2], plan.chunks, unit.shape[-1])
        tallies = plan.tallies() if learned else (None, None, None)
        rows = (unit, shift_q, shift_k, weight, decay, den, dden)
        plan.start(
            kernels.backward_kernel,
            (q, k, v, dout, dq, dk, dv),
            (plan.directions, *rows, *before[:4], *after[:4], dunit, *tallies),
            (plan.scale, plan.amount),
            plan.settings.backward,
            GATED=decay is not None,
            LEARNED=learned,
        )
        gates = plan.gate_gradients(weight, *tallies) if learned else (None, None)
        dunit = None if dunit is None else dunit.sum((0, 2))
        return dq, dk, dv, dunit, None, None, *gates, None


class _FeatureMapRun:
    """How the lines are cut, and the settings that all kernels share."""

    def __init__(
        self, q: Tensor, v: Tensor, feature: Feature, eps: float, floor: float | None
    ) -> None:
        b, self.heads, self.n, width = q.shape
        self.shape, self.lines = q.shape[:3], b * self.heads
        self.half = {"device": q.device, "dtype": q.dtype}
        self.exact = {"device": q.device, "dtype": torch.float32}
        self.eps, self.floor = eps, float("-inf") if floor is None else floor
        self.kind, self.directions, self.scale, self.amount = feature, None, 1.0, 0.0
        features = width
        if isinstance(feature, Random):
            self.kind, directions, self.scale, _ = feature
            self.amount = RELU_FLOOR if self.kind == "relu" else directions.shape[1] ** -0.5
            twice = (directions, directions) if self.kind == "trig" else (directions,)
            directions = expand_heads(torch.cat(twice, dim=1)[None], self.heads)[0]
            features = directions.shape[1]
        self.settings = _settings(isinstance(feature, Random), width, v.shape[-1])
        chunk = self.settings.chunk
        tile = min(self.settings.tile, max(16, 1 << (features - 1).bit_length()))
        tiles = -(-features // tile)
        if isinstance(feature, Random):
            padded = q.new_zeros(self.heads, tiles * tile, width)
            padded[:, :features] = directions
            self.directions = padded
        self.chunks = -(-self.n // chunk)
        segments = min(max(1, self.settings.programs // (self.lines * tiles)), self.chunks)
        self.steps = -(-self.chunks // segments)
        self.segments = -(-self.chunks // self.steps)
        self.size = tiles * tile, v.shape[-1]
        self.blocks = {"W": chunk, "T": tile, "F": features, "P": tiles * tile}
        self.blocks["D"] = 0 if self.directions is None else width

    def options(self, launch: KernelLaunch) -> dict[str, int]:
        """Warps, registers, and as many stages as shared memory holds."""
        w, t, d = (self.blocks[name] for name in "WTD")
        stages = stages_that_fit(launch.stages, w, t, d, self.size[1])
        found = {"num_warps": launch.warps, "num_stages": stages}
        if launch.registers is not None and self.size[1] <= NARROW:
            found["maxnreg"] = launch.registers
        return found

    def sums(self, decay: Tensor | None) -> tuple[Tensor | None, ...]:
        """Buffers of S and z: near (and its z), far, the decays to the chunk and of a segment."""
        wide, e = self.size
        chunks, segments = (self.lines, self.chunks), (self.lines, self.segments)
        near = torch.empty(*chunks, wide, e, **self.half)
        total = torch.empty(*chunks, wide, **self.exact)
        far = torch.empty(*segments, wide * e + wide, **self.exact)
        if decay is None:
            return near, total, far, None, None
        span, fall = (torch.empty(size, **self.exact) for size in (chunks, segments))
        return near, total, far, span, fall

    def shifts(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What exponents of queries and of keys are shifted by, and the log-decay that follows."""
        top_q, _ = self.tops(q)
        top_k, half = self.tops(k)
        now = running_max(top_k - half)  # (b, h, n)
        before = torch.cat((now[..., :1], now[..., :-1]), dim=-1)
        return top_q, now + half, before - now

    def tops(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The largest s·ω·x, and ‖s·x‖² / 2: (b, h, n, d) -> (b, h, n) each."""
        from weft.kernels.linear_attention import kernels

        top, half = (torch.empty(self.shape, **self.exact) for _ in range(2))
        strides, sizes = x.stride()[:3], (self.heads, self.n, self.chunks)
        on_grid(kernels.top_kernel, (self.lines * self.chunks,))(
            *(x, self.directions, top, half, *strides, *sizes, self.scale),
            **self.blocks,
            **self.options(self.settings.forward),
        )
        return top, half

    def run_sums(self, kernels: Any, data: Any, rows: Any, sums: Any, *, after: bool) -> None:
        """Sums before every chunk, or after it; `data` is what is summed, `rows` one per token."""
        wide, e = self.size
        gated, size = sums[3] is not None, wide * e + wide
        strides = [x.stride(axis) if x is not None else 0 for x in data for axis in range(3)]
        sizes = (self.heads, self.n, self.chunks, self.segments, self.steps)
        on_grid(kernels.sums_kernel, (self.lines * self.segments * (wide // self.blocks["T"]),))(
            *(*data, self.directions, *rows, *sums, *strides, *sizes),
            *(self.scale, self.amount, self.floor),
            **self.blocks,
            **{"E": e, "KIND": self.kind, "GATED": gated, "AFTER": after},
            **self.options(self.settings.sums),
        )
        on_grid(kernels.prefix_kernel, (self.lines, -(-size // PREFIX)))(
            sums[2], sums[4], self.segments, size, BLOCK=PREFIX, GATED=gated, AFTER=after
        )

    def start(
        self, kernel: Any, data: Any, rest: Any, numbers: Any, launch: KernelLaunch, **flags: bool
    ) -> None:
        """One program per chunk: tensors with strides, others, then numbers."""
        strides = [x.stride(axis) for x in data for axis in range(3)]
        sizes = (self.heads, self.n, self.chunks, self.segments, self.steps)
        kernel[(self.lines * self.chunks,)](
            *(*data, *rest, *strides, *sizes, *numbers),
            **self.blocks,
            **{"E": self.size[1], "KIND": self.kind, **flags},
            **self.options(launch),
        )

    def tallies(self) -> tuple[Tensor, Tensor, Tensor]:
        """Buffers of φ·dφ of queries and keys, (lines, chunks, w), and ⟨S, R⟩, (lines, chunks)."""
        room = torch.empty(2, self.lines, self.chunks, self.blocks["W"], **self.exact)
        return room[0], room[1], room.new_empty(self.lines, self.chunks)

    def gate_gradients(
        self, weight: Tensor, of_q: Tensor, of_k: Tensor, cross: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of w and a, (b, h, n) each.

        A pair (i, j) reads a_t for j < t ≤ i: pairs of queries from t on, less those whose key is
        from t on, and, for queries of later chunks, all that is carried out of this one.
        """
        later = (of_q - of_k).flip(-1).cumsum(-1).flip(-1) + cross[..., None]
        dweight, ddecay = (
            x.view(self.lines, -1)[:, : self.n].view(self.shape) for x in (of_k, later)
        )
        return torch.where(weight > 0, dweight / weight, 0.0), ddecay


def _settings(random: bool, *widths: int) -> LaunchSettings:
    """Those for features made here or given, of heads this wide."""
    if max(widths) > NARROW:
        return WIDE
    return RANDOM if random else GIVEN


def stages_that_fit(wanted: int, w: int, t: int, d: int, e: int) -> int:
    """At most `wanted`, at least 1: steps of the loop over tiles whose loads lie in shared memory.

    Held are q, k, v, dout, two matrices of scores and a tile of S and R, in bfloat16; each stage
    adds a tile of ω (or of q and k, as given) and of S, in bfloat16 and float32.
    """
    held = 2 * w * (2 * (d or t) + 2 * e) + 4 * w * w + 4 * t * e
    flowing = 6 * t * e + (2 * t * d or 4 * w * t)
    return max(1, min(wanted, (SHARED - held) // flowing))


def _rows(x: Tensor, heads: int) -> Tensor:
    """(b, g, n) -> (b, heads, n), float32 and contiguous."""
    return expand_heads(x.float(), heads).contiguous()


def _like(x: Tensor, width: int) -> Tensor:
    """An empty (b, h, n, width) whose memory is (b, n, h, width): what a projection reads."""
    b, h, n, _ = x.shape
    return x.new_empty(b, n, h, width).transpose(1, 2)
