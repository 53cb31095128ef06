"""Block-sparse attention by our own Triton kernels: a layout in, values and gradients out.

The lists of visible blocks come from the block calculus; blocks that are only partly visible carry
a tile of biases, evaluated once, equal tiles stored once. So one compiled kernel serves every
pattern: nothing is compiled anew for a pattern or a length, and a call costs a few launches.

Parts of a lowered pattern run one after another, each continuing the softmax of the one before, so
nothing has to be merged. Going back, all use the final log-sum-exp: with P = exp(S − lse) the
gradient of a part needs nothing from the others. A key block that very many rows read is shared
out, and its shares add up in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.block_sparse_lists import Lists, Step, lists_of, steps_of
from weft.kernels.dropout import Dropout
from weft.kernels.fitting import Program, start_fitting
from weft.kernels.joint import empty_like_heads
from weft.kernels.labels import Labels, make_labels
from weft.patterns.lower import Lowered, Part
from weft.patterns.order import Order

BLOCKS = (128, 64)  # block sizes the kernels are used with, the faster per pair first
WIDTHS = (16, 32, 64, 128)
LOG2E = 1.4426950408889634
# The fastest programs found on an H200, by block size and width of heads; in blocks of 64, heads of
# 16 and 128 take what was found for 64 rows of a block of 128.
TUNING: dict[int, dict[str, dict[int, Program]]] = {
    128: {
        "forward": {
            16: Program(64, 64, 4, 2, 2),
            32: Program(64, 128, 4, 2),
            64: Program(128, 128, 4, 2),
            128: Program(128, 64, 4, 3),
        },
        "dq": {
            16: Program(64, 64, 4, 2, 2),
            32: Program(64, 64, 4, 2, 2),
            64: Program(64, 32, 4, 2, 2),
            128: Program(64, 64, 4, 2),
        },
        "dkdv": {
            16: Program(128, 32, 4, 3),
            32: Program(64, 64, 4, 2, 2),
            64: Program(64, 64, 4, 2, 2),
            128: Program(64, 64, 4, 2),
        },
    },
    64: {
        "forward": {
            16: Program(64, 64, 4, 2),
            32: Program(64, 64, 4, 2),
            64: Program(64, 64, 4, 3),
            128: Program(64, 64, 4, 2),
        },
        "dq": {
            16: Program(64, 32, 4, 2, 2),
            32: Program(64, 32, 4, 2, 2),
            64: Program(64, 32, 4, 2, 2),
            128: Program(64, 64, 4, 2),
        },
        "dkdv": {
            16: Program(64, 64, 4, 3),
            32: Program(64, 64, 4, 3),
            64: Program(64, 32, 4, 2, 2),
            128: Program(64, 64, 4, 2),
        },
    },
}


def can_run(part: Part, n: int, m: int) -> bool:
    """Whether the kernels take this part: rows as they stand or folded evenly, any keys."""
    return type(part.rows) is Order and (part.fold == 1 or n == m == part.fold * part.length)


def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lowered: Lowered,
    *,
    block: int,
    scale: float,
    labels: Labels | None = None,
    instead: tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(b, h, n, d), (b, g, m, d) twice -> values (b, h, n, d) and log-sum-exp (b, h, n).

    `instead` holds indices (r,) of queries and the values (b, h, r, d) that stand there instead;
    the log-sum-exp of these rows means nothing then.
    """
    rows, values = instead or (None, None)
    steps = steps_of(lowered, block, q.shape[0] * k.shape[1], k.shape[2], q.device)
    drop = Dropout.of(dropout, q.device)
    return _BlockSparse.apply(q, k, v, values, steps, scale, labels, rows, drop)


def block_sparse_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    part: Part,
    *,
    block: int,
    scale: float,
    labels: Labels | None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same for one part whose q, k and v stand in its order already."""
    lists = lists_of(part, block, q.shape[0] * k.shape[1], q.device)
    steps, drop = (Step(1, lists, None),), Dropout.of(dropout, q.device)
    return _BlockSparse.apply(q, k, v, None, steps, scale, labels, None, drop)


def takes_several(q: Tensor, block: int) -> bool:
    """Whether `attend_several` takes heads (b, h, n, d) in blocks: half precision on a GPU."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    return q.is_cuda and half and q.shape[3] in WIDTHS and block in TUNING


def attend_several(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor,
    lists: Lists,
    pick: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Each row of the batch under a layout of its own: pick (b,) of `lists_of_several`.

    q (b, h, n, d), k and v (b, g, n, d), valid (b, n) -> (b, h, n, d).
    """
    labels, drop = make_labels(valid, None, q.shape[2]), Dropout.of(dropout, q.device)
    steps = (Step(1, lists, None, pick),)
    return _BlockSparse.apply(q, k, v, None, steps, scale, labels, None, drop)[0]


class _BlockSparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        values: Tensor | None,
        steps: tuple[Step, ...],
        scale: float,
        labels: Labels | None,
        rows: Tensor | None,
        drop: Dropout | None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = run_steps(q, k, v, steps, scale, labels, drop)
        if rows is not None:
            out.index_copy_(2, rows, values)
            # So all weights of these rows are 0, and nothing flows back through them.
            lse.index_fill_(2, rows, float("inf"))
        ctx.save_for_backward(q, k, v, out, lse, rows)
        ctx.steps, ctx.scale, ctx.labels, ctx.drop = steps, scale, labels, drop
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, rows = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout
        given = (ctx.steps, ctx.scale, ctx.labels, ctx.drop)
        grads = run_steps_back(q, k, v, out, lse, dout, dlse, *given)
        dvalues = None if rows is None else dout.index_select(2, rows)
        return *grads, dvalues, None, None, None, None, None


def run_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    steps: tuple[Step, ...],
    scale: float,
    labels: Labels | None,
    drop: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Values (b, h, n, d) and log-sum-exp (b, h, n); each part continues the one before."""
    from weft.kernels.block_sparse_triton import forward_kernel

    b, h, n, _ = q.shape
    out, lse = _like(q), q.new_empty(b, h, n, dtype=torch.float32)
    for at, step in enumerate(steps):
        pk, pv, pl = _keys(step, k, v, labels, n)
        launcher(forward_kernel, "forward", step, q, pk, scale, pl, drop, at)(
            (q, pk, pv, out, lse), (q, pk, pv, out, lse), INIT=at > 0
        )
    return out, lse


def run_steps_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    steps: tuple[Step, ...],
    scale: float,
    labels: Labels | None,
    drop: Dropout | None = None,
    joint: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; `joint`: in one buffer where q, k and v lie in one."""
    from weft.kernels.block_sparse_triton import key_gradient_kernel, query_gradient_kernel

    dout = _last_axis_contiguous(dout)
    dq, dk, dv = empty_like_heads((q, k, v)) if joint else map(_like, (q, k, v))
    base, delta = torch.empty_like(lse), torch.empty_like(lse)
    dlse = None if dlse is None else dlse.to(lse.dtype).contiguous()
    for at, step in enumerate(steps):
        pk, pv, pl = _keys(step, k, v, labels, q.shape[2])
        launcher(query_gradient_kernel, "dq", step, q, pk, scale, pl, drop, at)(
            (q, pk, pv, out, dout, lse, lse if dlse is None else dlse, base, delta, dq),
            (q, pk, pv, out, dout, lse, dq),
            FIRST=at == 0,
            HAS_DLSE=dlse is not None,
        )
        launch = launcher(key_gradient_kernel, "dkdv", step, q, pk, scale, pl, drop, at)
        _key_gradients(launch, step, (q, pk, pv, dout, base, delta), dk, dv, at == 0)
    return dq, dk, dv


def _key_gradients(
    launch: Any,
    step: Step,
    given: tuple[Tensor, ...],
    dk: Tensor,
    dv: Tensor,
    first: bool,
) -> None:
    """dk and dv of one part, added to what the parts before it left."""
    chosen, fold, plan = step.chosen, step.fold, step.lists
    own_k, own_v = (dk, dv) if chosen is None else (_like(x) for x in given[1:3])
    b, g, _, d = dk.shape
    size = (b, fold, g, len(plan.shared), 2, plan.block, d)
    shared = dk.new_zeros(size, dtype=torch.float32)
    add = not first and chosen is None
    launch((*given, own_k, own_v, shared), (*given[:5], own_k, own_v), ADD=add, shared=shared)
    for at, column in enumerate(plan.shared.tolist()):
        for grad, total in ((own_k, shared[..., at, 0, :, :]), (own_v, shared[..., at, 1, :, :])):
            # (b, fold, g, length, d): the sequences of the part, as a view.
            lines = grad.unflatten(2, (-1, fold)).permute(0, 3, 1, 2, 4)
            place = lines[..., column * plan.block : (column + 1) * plan.block, :]
            total = total[..., : place.shape[-2], :]
            place.copy_(place + total if add else total)
    if chosen is not None:
        for whole, own in ((dk, own_k), (dv, own_v)):
            if first:
                whole.zero_()
            whole.index_add_(2, chosen, own)


def _keys(
    step: Step, k: Tensor, v: Tensor, labels: Labels | None, n: int
) -> tuple[Tensor, Tensor, Labels | None]:
    """The keys and values that the part selects, and the labels of all queries and these keys."""
    chosen = step.chosen
    if labels is not None:
        labels = labels.take(None, chosen)
        labels = Labels(labels.queries.expand(-1, n).contiguous(), labels.keys.contiguous())
    if chosen is None:
        return k, v, labels
    return k.index_select(2, chosen), v.index_select(2, chosen), labels


def _like(x: Tensor) -> Tensor:
    """An empty (b, h, n, d) whose memory is (b, n, h, d): what a projection reads and writes."""
    b, h, n, d = x.shape
    return x.new_empty(b, n, h, d).transpose(1, 2)


def _last_axis_contiguous(x: Tensor) -> Tensor:
    """x (b, h, n, d) in memory order (b, n, h, d)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def launcher(
    kernel: Any,
    name: str,
    step: Step,
    q: Tensor,
    k: Tensor,
    scale: float,
    labels: Labels | None,
    drop: Dropout | None,
    part: int,
) -> Any:
    """A function that starts a kernel: its tensors, then those whose strides it wants."""
    plan, fold, d = step.lists, step.fold, q.shape[3]
    tuned = TUNING[plan.block][name][d]
    parts = plan.block // tuned.rows  # programs of a block
    b, h, g, n, m = q.shape[0], q.shape[1], k.shape[1], q.shape[2] // fold, k.shape[2] // fold
    marks = (plan.cols, plan.cols) if labels is None else (labels.queries, labels.keys)
    marks = (plan.cols if step.pick is None else step.pick, *marks)
    settings = {
        "BLOCK": plan.block,
        "WIDTH": d,
        "EVEN": n % plan.block == 0 and m % plan.block == 0,
        "LABELLED": labels is not None,
        "DROPS": drop is not None,
        "PICKED": step.pick is not None,
    }

    def start(tensors: tuple[Tensor, ...], strided: tuple[Tensor, ...], **more: Any) -> None:
        strides = [y for x in strided for y in (x.stride(0), x.stride(1), fold * x.stride(2))]
        if name == "dkdv":
            lists = (*plan.shares, plan.back_rows, plan.back_tiles, plan.back)
            strides.append(more.pop("shared").stride(2))
            grid, heads = (b * fold * g, len(plan.shares[0]) // plan.layouts * parts), g
        else:
            lists = (plan.start, plan.middle, plan.cols, plan.tile_of, plan.tiles, plan.order)
            grid, heads = (b * fold * h, plan.rows * parts), h
        sizes = (heads, h // g, fold, n, m)
        scales = (scale * LOG2E,) if name == "forward" else (scale * LOG2E, scale)
        drops = (plan.cols, plan.cols, 0, 1.0)
        if drop is not None:
            drops = (*drop.numbers(part, b * h * fold, n, m), *drop.given(part)[1:])
        given = (*tensors, *strides, *lists, *marks, *sizes, *scales, *drops)

        def begin(by: Program) -> None:
            own = {"ROWS": by.rows, "STEP": by.step, "UNROLL": by.unroll}
            own |= {"num_warps": by.warps, "num_stages": by.stages}
            kernel[grid](*given, **settings, **own, **more)

        kind = (f"block_sparse {name}", plan.block, d, labels is None, drop is None, q.device)
        start_fitting(kind, tuned, begin)

    return start
