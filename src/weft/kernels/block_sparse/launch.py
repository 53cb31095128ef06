"""How the three block-sparse kernels are started: arguments by name, prepared for each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.kernels.attend.masking import KeyLabels
from weft.kernels.block_sparse.lists import KernelStep
from weft.kernels.dropout import Dropout
from weft.kernels.launch import Program, start_fitting

LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class BlockSparseLaunch:
    """One part of a call: what the three kernels share, by the names of their arguments."""

    programs: dict[str, dict[int, Program]]  # by kernel and width of heads
    step: KernelStep
    q: Tensor
    k: Tensor
    scale: float
    labels: KeyLabels | None = None
    drop: Dropout | None = None
    part: int = 0

    def start(
        self,
        kernel: Any,
        name: str,
        tensors: dict[str, Tensor],
        strided: dict[str, Tensor],
        **settings: Any,
    ) -> None:
        """Start a kernel: tensors are named as in `q_ptr`, strides as in `q_b`, `q_h`, `q_n`."""
        lists, fold = self.step.lists, self.step.fold
        wanted = self.programs[name][self.q.shape[3]]
        b, lines = self.q.shape[0], self.k.shape[1] if name == "dkdv" else self.q.shape[1]
        rows = len(lists.shares[0]) // lists.layouts if name == "dkdv" else lists.rows
        grid = (b * fold * lines, rows * (lists.block // wanted.rows))
        given = {f"{key}_ptr": x for key, x in tensors.items()}
        for key, x in strided.items():
            given |= {
                f"{key}_b": x.stride(0),
                f"{key}_h": x.stride(1),
                f"{key}_n": fold * x.stride(2),
            }
        given |= self._lists(name) | self._sizes(name) | self._draws() | settings

        def begin(by: Program) -> None:
            own = {"ROWS": by.rows, "STEP": by.step, "UNROLL": by.unroll}
            kernel[grid](**given, **own, num_warps=by.warps, num_stages=by.stages)

        flags = (self.labels is None, self.drop is None, self.q.device)
        start_fitting((f"block_sparse {name}", lists.block, self.q.shape[3], *flags), wanted, begin)

    def _lists(self, name: str) -> dict[str, Tensor]:
        """The lists of blocks, by rows or by shares of columns, and the labels of tokens."""
        lists, pick, labels = self.step.lists, self.step.pick, self.labels
        unused = lists.cols
        given = {
            "pick": unused if pick is None else pick,
            "query_labels": unused if labels is None else labels.queries,
            "key_labels": unused if labels is None else labels.keys,
        }
        if name == "dkdv":
            names = ("seg_col", "seg_first", "seg_middle", "seg_last", "seg_shared")
            given |= dict(zip(names, lists.shares, strict=True))
            return given | {
                "rows_of": lists.back_rows,
                "tile_of": lists.back_tiles,
                "tiles": lists.back,
            }
        given |= {"start": lists.start, "middle": lists.middle, "row_order": lists.order}
        return given | {"cols": lists.cols, "tile_of": lists.tile_of, "tiles": lists.tiles}

    def _sizes(self, name: str) -> dict[str, Any]:
        block, fold, d = self.step.lists.block, self.step.fold, self.q.shape[3]
        h, g, n, m = self.q.shape[1], self.k.shape[1], self.q.shape[2], self.k.shape[2]
        n, m = n // fold, m // fold
        given = {"group": h // g, "fold": fold, "n": n, "m": m, "scale": self.scale * LOG2E}
        given |= {"key_heads": g} if name == "dkdv" else {"heads": h}
        given |= {} if name == "forward" else {"natural_scale": self.scale}
        return given | {
            "BLOCK": block,
            "WIDTH": d,
            "EVEN": n % block == 0 and m % block == 0,
            "LABELLED": self.labels is not None,
            "DROPS": self.drop is not None,
            "PICKED": self.step.pick is not None,
        }

    def _draws(self) -> dict[str, Any]:
        """Dropout: draws of rows and columns, the threshold, the gain of the other weights."""
        names = ("row_draws", "col_draws", "threshold", "grow")
        if self.drop is None:
            unused = self.step.lists.cols
            return dict(zip(names, (unused, unused, 0, 1.0), strict=True))
        (b, h, n, _), m, fold = self.q.shape, self.k.shape[2], self.step.fold
        numbers = self.drop.numbers(self.part, b * h * fold, n // fold, m // fold)
        return dict(zip(names, (*numbers, *self.drop.given(self.part)[1:]), strict=True))


def query_gradients(
    launch: BlockSparseLaunch,
    v: Tensor,
    out: Tensor,
    dout: Tensor,
    dq: Tensor,
    row_sums: dict[str, Tensor],
    *,
    dlse: Tensor | None = None,
    first: bool = True,
) -> None:
    """dq (b, h, n, d) of one part; `row_sums` (b, h, n): lse, base and delta."""
    from weft.kernels.block_sparse.kernels import query_gradient_kernel

    heads, lse = {"q": launch.q, "k": launch.k, "v": v}, row_sums["lse"]
    tensors = heads | {"out": out, "dout": dout, "dq": dq} | row_sums
    tensors["dlse"] = lse if dlse is None else dlse
    strided = heads | {"o": out, "g": dout, "s": lse, "x": dq}
    flags = {"FIRST": first, "HAS_DLSE": dlse is not None}
    launch.start(query_gradient_kernel, "dq", tensors, strided, **flags)


def key_gradients(
    launch: BlockSparseLaunch,
    given: dict[str, Tensor],
    dk: Tensor,
    dv: Tensor,
    shared: Tensor,
    *,
    add: bool = False,
) -> None:
    """dk and dv of one part; `given`: q, k, v, dout, base, delta; `shared` takes shared sums."""
    from weft.kernels.block_sparse.kernels import key_gradient_kernel

    tensors = given | {"dk": dk, "dv": dv, "shared": shared}
    strided = {key: given[key] for key in ("q", "k", "v")}
    strided |= {"g": given["dout"], "s": given["base"], "x": dk, "y": dv}
    settings = {"shared_line": shared.stride(2), "ADD": add}
    launch.start(key_gradient_kernel, "dkdv", tensors, strided, **settings)
