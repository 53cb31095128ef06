"""Block-sparse attention by our own Triton kernels: a layout in, values and gradients out.

The lists of visible blocks come from the block calculus; blocks that are only partly visible carry
a tile of biases, evaluated once, equal tiles stored once. So one compiled kernel serves every
pattern: nothing is compiled again for a pattern or a length, and a call costs a few launches.

Parts of a lowered pattern run one after another, each continuing the softmax of the one before, so
nothing has to be merged. Backward, all use the final log-sum-exp: with P = exp(S − lse) the
gradient of a part needs nothing from the others. A key block that very many rows read is shared
out, and its shares add up in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.kernels.adjacent import empty_like_heads
from weft.kernels.attend.masking import KeyLabels, make_labels
from weft.kernels.block_sparse.launch import (
    BlockSparseLaunch,
    key_gradients,
    query_gradients,
)
from weft.kernels.block_sparse.lists import BlockLists, KernelStep, lists_of, steps_of
from weft.kernels.dropout import Dropout
from weft.kernels.launch import Program
from weft.kernels.planner.fast import HALF, FastKernel, Rule
from weft.patterns.lower import Lowered, Part
from weft.patterns.order import Order

BLOCKS = (128, 64)  # block sizes the kernels are used with, the faster per pair first
WIDTHS = (16, 32, 64, 128)
TAKES_WIDTHS = "takes heads of 16, 32, 64 and 128"
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
    """Whether the kernels take this part: rows in natural order or folded evenly, any keys."""
    return type(part.rows) is Order and (part.fold == 1 or n == m == part.fold * part.length)


def block_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lowered: Lowered,
    *,
    block: int,
    scale: float,
    labels: KeyLabels | None = None,
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
    labels: KeyLabels | None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same for one part whose q, k and v are in its order already."""
    lists = lists_of(part, block, q.shape[0] * k.shape[1], q.device)
    steps, drop = (KernelStep(1, lists, None),), Dropout.of(dropout, q.device)
    return _BlockSparse.apply(q, k, v, None, steps, scale, labels, None, drop)


SEVERAL = FastKernel("a layout per row", dtypes=HALF, plain="gather", graph=True)


def takes_several(q: Tensor, block: int) -> bool:
    """Whether `attend_several` takes heads (b, h, n, d) in blocks of this size."""
    width = q.shape[3]
    rules = (
        Rule(width in WIDTHS, TAKES_WIDTHS, width),
        Rule(block in TUNING, "takes blocks of 64 and 128", block),
    )
    return SEVERAL.takes(q, rules=rules)


def attend_several(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    lists: BlockLists,
    pick: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Each row of the batch under a layout of its own: pick (b,) of `lists_of_several`.

    q (b, h, n, d), k and v (b, g, n, d), valid (b, n) -> (b, h, n, d).
    """
    labels, drop = make_labels(valid, None, q.shape[2]), Dropout.of(dropout, q.device)
    steps = (KernelStep(1, lists, None, pick),)
    return _BlockSparse.apply(q, k, v, None, steps, scale, labels, None, drop)[0]


class _BlockSparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        values: Tensor | None,
        steps: tuple[KernelStep, ...],
        scale: float,
        labels: KeyLabels | None,
        rows: Tensor | None,
        drop: Dropout | None,
    ) -> tuple[Tensor, Tensor]:
        out, lse = run_steps(q, k, v, steps, scale, labels, drop)
        if rows is not None and values is not None:
            out.index_copy_(2, rows, values)
            # All weights of these rows are then 0, and so are their gradients.
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
    steps: tuple[KernelStep, ...],
    scale: float,
    labels: KeyLabels | None,
    drop: Dropout | None = None,
) -> tuple[Tensor, Tensor]:
    """Values (b, h, n, d) and log-sum-exp (b, h, n); each part continues the one before."""
    from weft.kernels.block_sparse.kernels import forward_kernel

    b, h, n, _ = q.shape
    out, lse = _like(q), q.new_empty(b, h, n, dtype=torch.float32)
    for at, step in enumerate(steps):
        pk, pv, pl = _keys(step, k, v, labels, n)
        launch, heads = (
            launch_of(step, q, pk, scale, pl, drop, at),
            {"q": q, "k": pk, "v": pv},
        )
        tensors, strided = heads | {"out": out, "lse": lse}, heads | {"o": out, "s": lse}
        launch.start(forward_kernel, "forward", tensors, strided, INIT=at > 0)
    return out, lse


def run_steps_back(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    dlse: Tensor | None,
    steps: tuple[KernelStep, ...],
    scale: float,
    labels: KeyLabels | None,
    drop: Dropout | None = None,
    joint: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; `joint`: in one buffer where q, k and v lie in one."""
    dout = _last_axis_contiguous(dout)
    dq, dk, dv = empty_like_heads((q, k, v)) if joint else map(_like, (q, k, v))
    base, delta = torch.empty_like(lse), torch.empty_like(lse)
    dlse = None if dlse is None else dlse.to(lse.dtype).contiguous()
    for at, step in enumerate(steps):
        pk, pv, pl = _keys(step, k, v, labels, q.shape[2])
        launch = launch_of(step, q, pk, scale, pl, drop, at)
        row_sums = {"lse": lse, "base": base, "delta": delta}
        query_gradients(launch, pv, out, dout, dq, row_sums, dlse=dlse, first=at == 0)
        given = {"q": q, "k": pk, "v": pv, "dout": dout, "base": base, "delta": delta}
        _key_gradients(launch, given, dk, dv, at == 0)
    return dq, dk, dv


def launch_of(
    step: KernelStep, q: Tensor, k: Tensor, scale: float, *given: Any
) -> BlockSparseLaunch:
    """The launches of one part, by the programs for its block size; `given`: labels, drop, part."""
    return BlockSparseLaunch(TUNING[step.lists.block], step, q, k, scale, *given)


def _key_gradients(
    launch: BlockSparseLaunch, given: dict[str, Tensor], dk: Tensor, dv: Tensor, first: bool
) -> None:
    """dk and dv of one part, added to what the parts before it left."""
    chosen, fold, plan = launch.step.chosen, launch.step.fold, launch.step.lists
    own_k, own_v = (dk, dv) if chosen is None else (_like(given[key]) for key in ("k", "v"))
    b, g, _, d = dk.shape
    size = (b, fold, g, len(plan.shared), 2, plan.block, d)
    shared = dk.new_zeros(size, dtype=torch.float32)
    add = not first and chosen is None
    key_gradients(launch, given, own_k, own_v, shared, add=add)
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
    step: KernelStep, k: Tensor, v: Tensor, labels: KeyLabels | None, n: int
) -> tuple[Tensor, Tensor, KeyLabels | None]:
    """The keys and values that the part selects, and the labels of all queries and these keys."""
    chosen = step.chosen
    if labels is not None:
        labels = labels.take(None, chosen)
        labels = KeyLabels(labels.queries.expand(-1, n).contiguous(), labels.keys.contiguous())
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
