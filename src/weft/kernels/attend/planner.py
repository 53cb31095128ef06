"""Which kernel runs a call of `attend`, and why: decided from shapes, before anything runs.

Each fast kernel has one function that says why it does not take a request (`..._refusal`). Calls
outside a compiled graph go on to compare costs. Inside one, lengths may be symbolic and layouts
are not known yet, so `choose_in_graph` applies the same rules without costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from weft.errors import Unsupported
from weft.kernels.block_sparse.flex import BLOCKS as FLEX_BLOCKS
from weft.kernels.block_sparse.triton import BLOCKS as TRITON_BLOCKS
from weft.kernels.block_sparse.triton import TAKES_WIDTHS, WIDTHS, can_run
from weft.kernels.dense import flash
from weft.kernels.planner.choice import BLOCK, IN_HALF, NO_BIAS, ON_GPU, Choice, Refusal
from weft.patterns import Causal, Full, Order, Pattern, Queries, Sliding
from weft.patterns.lower import Lowered, Part, branches, conjuncts, lower

Kernel = Literal["auto", "dense", "sdpa", "gather", "flex", "triton", "flash"]
KERNELS = ("auto", "dense", "sdpa", "gather", "flex", "triton", "flash")
GATHER_BLOCK = BLOCK
LISTED = 2**34  # pairs up to which the blocks of full(), a million then, are worth a list
BLOCKS = {"flex": FLEX_BLOCKS, "triton": TRITON_BLOCKS}
# On a CPU, narrow patterns over many tokens run in smaller blocks, which compute fewer pairs.
NARROW_BLOCKS = (64, 32)
NARROW_FROM = 1536  # tokens; shorter sequences keep blocks of 128, and so their recorded digits
NARROW = 8  # blocks of 128 in a row, on average: what reads more gains little
_EVERY_KEY = "no key is left out"
_PADDED = "real tokens come first, so padding needs no mask"
_WINDOW = "a window that drops weights"
_NO_LSE = Refusal("returns no log-sum-exp")
_NO_DOUBLE = Refusal("has no float64")
_NO_DROPOUT = Refusal("has no dropout")
_WIDTHS = Refusal(TAKES_WIDTHS, "width")
_ONE_SEQUENCE = Refusal("reads keys of its own sequence")
_IN_TEXT = Refusal("takes patterns that have a text and no rows that read everything", "pattern")


@dataclass(frozen=True)
class KernelSpeed:
    """How a kernel compares with fused dense attention: measured, in dense pairs per head."""

    slower: float  # time of one computed pair, relative to a pair of dense attention
    overhead: int  # pairs that the start of one more part costs
    lanes: int  # multiprocessors that share the work
    small_blocks: float = 1.0  # how much slower a pair is in blocks of half the size
    masked: float = 1.0  # how much slower a pair of dense attention is under a mask


# Under a mask torch takes another dense kernel: on an H200, forward 4.0 and backward 3.7 times as
# long as without (8 rows of 1,000 tokens, 8 heads of 64, bfloat16, dropout).
# Blocks of 64: 1.1 times as long for each pair (benchmarks/cases/kernel_settings.py).
# On a CPU, windows of 17 to 129, heads of 8 to 64: 1.0 to 1.2 times.
SPEEDS = {"cpu": KernelSpeed(1.2, 20_000, 0, 1.1), "cuda": KernelSpeed(1.6, 200_000, 132, 1.1, 3.7)}


class Request(NamedTuple):
    """Everything about a call except the numbers in q, k and v."""

    pattern: Pattern
    batch: int
    heads: int
    n: int
    m: int
    device: str
    dtype: torch.dtype
    learning: bool
    masked: bool
    biased: bool
    dropout: float
    lse: bool
    width: int = 64  # of a head
    aligned: bool = False  # queries and keys are one sequence, real tokens first in each row
    graph: bool = False  # inside `torch.compile`


def choose(request: Request, kernel: Kernel = "auto") -> Choice:
    """The kernel for a request whose heads share one pattern."""
    if not request.graph:
        return choose_eager(request, kernel)
    found = choose_in_graph(request, kernel)
    if found is not None:
        return found
    outside = choose_eager(request._replace(graph=False), kernel)
    return outside._replace(reason=f"planned outside the graph; {outside.reason}")


def choose_in_graph(request: Request, kernel: Kernel = "auto") -> Choice | None:
    """The same inside a compiled graph; None: no kernel there takes it, the call leaves the graph.

    `torch.compile` traces this function, so it builds no texts from values.
    """
    if kernel == "auto" and flash_wanted(request) and flash_refusal(request) is None:
        return Choice("flash", _PADDED if request.masked else _WINDOW)
    operator = kernel in ("auto", "triton") and operator_refusal(request, kernel) is None
    reads_all = type(request.pattern) is Full or type(request.pattern) is Causal
    if kernel == "auto" and reads_all and not request.lse and not (operator and request.masked):
        return Choice("sdpa", _EVERY_KEY)  # nothing to plan breaks the graph
    return Choice("triton", "an operator of the graph") if operator else None


def flash_wanted(request: Request) -> bool:
    """Whether flash is the kernel to take: for padded rows, and for windows that drop weights.

    Dense attention without padding is torch's to choose, and other windows are faster in our own
    kernels: on an H200, forward and backward, heads of 16 at 1,024 tokens take 2.4 ms with dropout
    where flash takes 3.0, heads of 64 at 4,096 tokens 2.2 where it takes 1.9.
    """
    narrow = request.width <= flash.NARROW
    return request.masked or (
        type(request.pattern) is Sliding and request.dropout > 0 and not narrow
    )


def flash_refusal(request: Request) -> Refusal | None:
    """Why torch's flash kernel does not take it."""
    if request.biased:
        return NO_BIAS
    if request.lse:
        return _NO_LSE
    return flash.refusal(
        request.pattern,
        device=request.device,
        dtype=request.dtype,
        width=request.width,
        same_length=request.n == request.m,
        first=request.aligned or not request.masked,
    )


def triton_refusal(request: Request, kernel: Kernel = "auto") -> Refusal | None:
    """Why our block-sparse kernels do not take it; on request they also run interpreted."""
    requested = kernel == "triton"
    if not requested and request.device != "cuda":
        return ON_GPU
    if not requested and request.dtype not in (torch.float16, torch.bfloat16):
        return IN_HALF
    if request.width not in WIDTHS:
        return _WIDTHS
    return NO_BIAS if request.biased else None


def operator_refusal(request: Request, kernel: Kernel = "auto") -> Refusal | None:
    """Why the operator of our kernels in a compiled graph does not take it."""
    refused = triton_refusal(request, kernel)
    if refused is not None:
        return refused
    if request.lse:
        return _NO_LSE
    if request.n > request.m:
        return _ONE_SEQUENCE
    return None if graph_spec(request.pattern) else _IN_TEXT


def flex_refusal(request: Request) -> Refusal | None:
    """Why FlexAttention does not take it."""
    if request.device != "cuda":
        return ON_GPU
    if request.dtype == torch.float64:
        return _NO_DOUBLE
    return _NO_DROPOUT if request.dropout else None


def graph_spec(pattern: Pattern) -> str:
    """The text by which a compiled graph holds a pattern; "" where the operator cannot take it.

    Modules find it before they are compiled (`remember_spec`), so that layers whose patterns are
    equal share a graph; for other patterns the graph is bound to this very object.
    """
    text = getattr(pattern, "_graph_spec", None)
    return _graph_spec(pattern) if text is None else text


def remember_spec(pattern: Pattern) -> Pattern:
    """The pattern, which now carries its `graph_spec`: text, the same in every process."""
    object.__setattr__(pattern, "_graph_spec", _graph_spec(pattern))
    return pattern


@torch.compiler.assume_constant_result
def _graph_spec(pattern: Pattern) -> str:
    # Rows that read everything are computed in a separate pass, which the operator has not.
    if any(isinstance(c, Queries) for b in branches(pattern) for c in conjuncts(b)):
        return ""
    try:
        return pattern.spec
    except Unsupported:
        return ""


@lru_cache(maxsize=512)
def choose_eager(request: Request, kernel: Kernel) -> Choice:
    """The kernel outside of a compiled graph."""
    if kernel != "auto":
        return _asked(request, kernel)
    if flash_wanted(request) and flash_refusal(request) is None:
        return Choice("flash", _PADDED if request.masked else _WINDOW)
    sparse, rejected = _sparse_kernel(request)
    refused = flash_refusal(request) if request.masked else None
    if refused is not None and request.device == "cuda":
        rejected = (f"flash: {refused.message(request)}", *rejected)
    ours = sparse == "triton" and request.n <= request.m
    listed = type(request.pattern) is not Full or request.n * request.m <= LISTED
    if type(request.pattern) in (Full, Causal) and not (request.masked and ours and listed):
        return _dense(request, _EVERY_KEY)
    lowered, block, price = _lowered(request, sparse)
    share = price / (request.n * request.m) / (_speed(request).masked if ours else 1.0)
    if share >= 1.0:
        dense = _dense(request, f"blocks would cost {share:.2f} times dense at this length")
        return dense if dense.rejected else dense._replace(rejected=rejected)
    reason = f"blocks cost {share:.2f} times dense"
    return _sparse(request, sparse, reason, (lowered, block), rejected)


def _asked(request: Request, kernel: Kernel) -> Choice:
    """The kernel that the caller names, if it can."""
    refused = None
    if kernel == "flash":
        refused = flash_refusal(request)
    elif kernel == "flex" and request.dropout:
        refused = flex_refusal(request._replace(device="cuda"))
    elif kernel == "triton":
        refused = triton_refusal(request, kernel)
    elif kernel == "sdpa" and request.lse and request.device == "cuda":
        refused = _NO_LSE
    if refused is not None:
        raise Unsupported(
            f"the {kernel} kernel {refused.message(request)}; use kernel='auto' instead"
        )
    if kernel in ("dense", "sdpa", "flash"):
        return Choice(kernel, "requested")
    return _sparse(request, kernel, "requested", _lowered(request, kernel)[:2])


def _sparse(
    request: Request,
    kernel: str,
    reason: str,
    layout: tuple[Lowered, int],
    rejected: tuple[str, ...] = (),
) -> Choice:
    """A block-sparse kernel with its parts: in one pass where our kernels take all of them."""
    lowered, block = layout
    taken = all(can_run(part, request.n, request.m) for part in lowered.parts)
    settings = {"lowered": lowered, "block": block, "one_pass": kernel == "triton" and taken}
    return Choice(kernel, reason, rejected=rejected, **settings)


def _dense(request: Request, why: str) -> Choice:
    """Torch's fused dense kernel, or what returns the log-sum-exp where it does not."""
    if not request.lse:
        return Choice("sdpa", why)
    if request.device == "cuda":
        kernel, rejected = _sparse_kernel(request)
        if kernel != "gather":
            reason = f"{why}; {kernel} returns the log-sum-exp"
            return _sparse(request, kernel, reason, _lowered(request, kernel)[:2], rejected)
        return Choice("dense", f"{why}; the log-sum-exp is requested", rejected=rejected)
    if request.biased or request.dropout:
        return Choice("dense", f"{why}; the log-sum-exp is requested")
    return Choice("sdpa", why)


def _sparse_kernel(request: Request) -> tuple[str, tuple[str, ...]]:
    """Our own kernels where they can, FlexAttention for a bias, gather for the rest; why not."""
    rejected: tuple[str, ...] = ()
    for kernel, refusal in (("triton", triton_refusal), ("flex", flex_refusal)):
        refused = refusal(request)
        if refused is None:
            return kernel, rejected
        rejected = (*rejected, f"{kernel}: {refused.message(request)}")
    return "gather", rejected


def _speed(request: Request) -> KernelSpeed:
    return SPEEDS["cuda" if request.device == "cuda" else "cpu"]


def _lowered(request: Request, kernel: str) -> tuple[Lowered, int, float]:
    """The cheapest parts, their block size, and their cost in pairs of dense attention."""
    speed = _speed(request)
    lanes = speed.lanes / (request.batch * request.heads)

    def priced(block: int, halvings: int) -> tuple[Lowered, int, float]:
        lowered = lower(request.pattern, request.n, request.m, block, speed.overhead, lanes)
        slower = speed.slower * speed.small_blocks**halvings
        return lowered, block, slower * lowered.price(block, speed.overhead, lanes)

    choices = [priced(block, h) for h, block in enumerate(BLOCKS.get(kernel, (GATHER_BLOCK,)))]
    if kernel == "gather" and _narrow(request, choices[0][0]):
        choices += [priced(block, h) for h, block in enumerate(NARROW_BLOCKS, 1)]
    return min(choices, key=lambda choice: choice[2])


def _narrow(request: Request, lowered: Lowered) -> bool:
    """Whether the gather kernel may pay fewer pairs in blocks smaller than 128."""
    few = lowered.computed_pairs(GATHER_BLOCK) <= NARROW * GATHER_BLOCK * request.n
    return request.device == "cpu" and request.n >= NARROW_FROM and few


def in_one_pass(request: Request) -> tuple[Lowered, int]:
    """Parts and block size for our kernels as an operator, which knows one pass alone.

    A pattern whose parts need q, k and v moved runs in its natural order.
    """
    chosen = choose_eager(request, "triton")
    assert chosen.lowered is not None
    if chosen.one_pass:
        return chosen.lowered, chosen.block
    return _natural(request.pattern, request.n, request.m), chosen.block


@lru_cache(maxsize=128)
def _natural(pattern: Pattern, n: int, m: int) -> Lowered:
    return Lowered((Part(pattern, Order(n, m - n), Order(m), m),))
