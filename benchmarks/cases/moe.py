"""Layers of experts against the dense layer of equal FLOPs, forward and backward.

    python benchmarks/cases/moe.py --out benchmarks/results/h200_moe.jsonl
    python benchmarks/cases/moe.py --device cpu --tokens 64 --dim 16 --hidden 32 --experts 4 \\
        --dtype float32 --rounds 2 --eager

Two tables: one expert per token (`switch`, hidden units as wide as the dense layer's), and two per
token with a swiglu gate (`moe`, experts half as wide, as Mixtral's). Every layer is checked first:
sampled tokens against the equation in float64; one that fails has no number. The cases of a table
take turns, and `ratio` is to the dense layer compiled the same way (rivals: to the eager one).
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.timing import Call, attempt, forward_backward, measure
from weft.environment import environment
from weft.feedforward import Dense, MixtureOfExperts, Switch
from weft.layers.penalty import penalties
from weft.rows import append

SAMPLE = 64  # tokens that are checked
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


class Size(NamedTuple):
    """What is measured."""

    tokens: int
    dim: int
    hidden: int
    experts: int
    dtype: torch.dtype
    device: str


class Case(NamedTuple):
    """A layer and how it runs."""

    name: str
    module: nn.Module
    call: Call
    mode: str = "eager"


def tokens_of(size: Size) -> Tensor:
    """(1, n, c): one row, so that a capacity per sequence is one per batch."""
    torch.manual_seed(0)
    return torch.randn(1, size.tokens, size.dim, device=size.device, dtype=size.dtype)


def built(config: Any, size: Size) -> nn.Module:
    """A layer of weft in training, with a router that has opinions."""
    torch.manual_seed(1)
    with torch.device(size.device):
        module = config.build(size.dim, bias=False).to(size.dtype).train()
    if hasattr(module, "router"):
        with torch.no_grad():
            module.router.weight.normal_(std=size.dim**-0.5)
    return module


def with_losses(module: nn.Module, x: Tensor) -> Call:
    """Forward and backward of the layer and of what its router pays."""
    sources, wanted = (x, *module.parameters()), torch.randn_like(x)

    def call() -> object:
        outputs = [module(x), penalties(module)]
        return torch.autograd.grad(outputs, sources, [wanted, torch.ones_like(outputs[1])])

    return call


def single(size: Size, compiled: bool) -> list[Case]:
    """One expert per token; the first case is the dense layer."""
    x = tokens_of(size).requires_grad_()
    dense = built(Dense(activation="relu", hidden=size.hidden), size)
    made = {
        f"switch capacity {room or 'none'}": Switch(
            experts=size.experts, activation="relu", hidden=size.hidden, capacity=room
        )
        for room in (1.25, 1.0, None)
    }
    cases = variants("dense", dense, x, compiled)
    for name, config in made.items():
        module = built(config, size)
        cases += variants(name, module, x, compiled and config.capacity != 1.0)
        if "1.25" in name:
            cases.append(Case(f"{name}, with losses", module, with_losses(module, x)))
    return cases


def double(size: Size, compiled: bool) -> list[Case]:
    """Two experts per token, half as wide, with a gate; the first case is the dense layer."""
    x = tokens_of(size).requires_grad_()
    dense = built(Dense(activation="swiglu", hidden=size.hidden), size)
    config = MixtureOfExperts(
        experts=size.experts, top=2, activation="swiglu", hidden=size.hidden // 2, noisy=False,
        load=0.0, importance=0.0,
    )  # fmt: skip
    cases = variants("dense swiglu", dense, x, compiled)
    return cases + variants("moe top 2", built(config, size), x, compiled)


def variants(name: str, module: nn.Module, x: Tensor, compiled: bool) -> list[Case]:
    """The layer as it is, and compiled."""
    found = [Case(name, module, forward_backward(module, (x,)))]
    if compiled:
        graph = torch.compile(module, fullgraph=True, dynamic=False)
        found.append(Case(name, module, forward_backward(graph, (x,)), "compiled"))
    return found


def transformers_switch(size: Size) -> Case:
    """`SwitchTransformersSparseMLP`."""
    from transformers.models.switch_transformers import modeling_switch_transformers as library

    config = library.SwitchTransformersConfig(
        d_model=size.dim,
        d_ff=size.hidden,
        num_experts=size.experts,
        expert_capacity=-(-size.tokens * 5 // (4 * size.experts)),
        dropout_rate=0.0,
        # In float32 their jitter writes into the input, which autograd refuses for a leaf.
        router_jitter_noise=0.0 if size.dtype == torch.float32 else 0.01,
    )
    with torch.device(size.device):
        module = library.SwitchTransformersSparseMLP(config).to(size.dtype).train()
    x = tokens_of(size).requires_grad_()
    return Case("Transformers switch, capacity 1.25", module, forward_backward(module, (x,)))


def transformers_mixtral(size: Size, how: str) -> Case:
    """`MixtralSparseMoeBlock`, its experts in a loop ("eager") or as grouped products."""
    from transformers import MixtralConfig
    from transformers.models.mixtral import modeling_mixtral as library

    config = MixtralConfig(
        hidden_size=size.dim,
        intermediate_size=size.hidden // 2,
        num_local_experts=size.experts,
        num_experts_per_tok=2,
        experts_implementation=how,
    )
    with torch.device(size.device):
        module = library.MixtralSparseMoeBlock(config).to(size.dtype).train()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    x = tokens_of(size).requires_grad_()
    return Case(f"Transformers mixtral, {how}", module, forward_backward(module, (x,)))


def rivals(table: str, size: Size) -> list[Callable[[], Case]]:
    """Layers of other libraries; one that cannot be built has a row that says why."""
    if table == "single":
        return [lambda: transformers_switch(size)]
    return [lambda how=how: transformers_mixtral(size, how) for how in ("eager", "grouped_mm")]


@torch.no_grad()
def check(module: nn.Module, size: Size) -> str | None:
    """Why a layer of experts is wrong, or None: sampled tokens against the equation in float64."""
    if not hasattr(module, "route"):
        return None
    x = tokens_of(size)
    truth, clear, wanted = equation(module, x[0])
    read, module.router_input = module.router_input, lambda flat: (flat, None)  # no jitter
    for train in (False, True):
        y = module.train(train)(x)[0]
        room = module.room(wanted) or size.tokens
        asked = torch.bincount(wanted.flatten(), minlength=size.experts)
        lost = int((asked - room).clamp(min=0).sum())
        if lost != int((y == 0).all(-1).sum()):
            return f"{lost} tokens have no room, and {int((y == 0).all(-1).sum())} got nothing"
        y = y[:SAMPLE].double()
        kept = clear & (y != 0).any(-1)
        wrong = ((y - truth).abs()[kept].max() / truth.abs().max()).item()
        if not wrong < TOLERANCE[size.dtype]:
            return f"differs from its equation by {wrong:.1e}"
    module.router_input = read
    return None


def equation(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first tokens of x (t, c): what they get without a limit, and whether their choice is
    no close call; and the choices of all tokens."""
    top = getattr(module.config, "top", 1)
    logits = x.double() @ module.router.weight.double().t()
    best, wanted = logits.topk(min(top + 1, logits.shape[1]), dim=-1)
    clear = (best[:, top - 1] - best[:, -1] > 1e-3) | (best.shape[1] == top)
    wanted = wanted[:, :top]
    chance = logits.softmax(-1).gather(1, wanted)
    gate = chance if top == 1 else chance / chance.sum(-1, keepdim=True)
    truth = torch.zeros_like(x[:SAMPLE], dtype=torch.float64)
    for token, row in enumerate(x[:SAMPLE].double()):
        for k, e in enumerate(wanted[token].tolist()):
            truth[token] += gate[token, k] * expert(module.experts, e, row)
    return truth, clear[:SAMPLE], module.router(x).topk(top, dim=-1).indices


def expert(experts: nn.Module, e: int, x: Tensor) -> Tensor:
    """One expert on one token (c,), in float64."""
    hidden = x @ experts.to_hidden.weight[e].double()
    if experts.to_gate is None:
        hidden = hidden.relu()
    else:
        hidden = F.silu(x @ experts.to_gate.weight[e].double()) * hidden
    return hidden @ experts.to_out.weight[e].double()


def run(table: str, size: Size, rounds: int, compiled: bool) -> list[dict[str, Any]]:
    """The rows of one table."""
    cases = (single if table == "single" else double)(size, compiled)
    first, failed = cases[0].name, dict[tuple[str, str], str]()
    for make in rivals(table, size):
        case, reason = attempt(make, size.device)
        if reason is None:
            cases.append(case)
        else:
            failed["Transformers", "eager"] = reason
    for module in {id(case.module): case.module for case in cases}.values():
        reason, broken = attempt(lambda module=module: check(module, size), size.device)
        if reason or broken:
            wrong = [case for case in cases if case.module is module]
            failed |= {(case.name, case.mode): reason or broken for case in wrong}
            cases = [case for case in cases if case.module is not module]
    timings = measure({(c.name, c.mode): c.call for c in cases}, rounds, size.device)
    failed |= timings.failed
    dense = {
        mode: statistics.median(seconds)
        for (name, mode), seconds in timings.seconds.items()
        if name == first
    }
    shared = {**size._asdict(), "dtype": str(size.dtype).removeprefix("torch."), "table": table}
    about = {**shared, "bench": "moe", "measure": "forward+backward", **environment(size.device)}
    rows = []
    for (name, mode), seconds in timings.seconds.items():
        median = statistics.median(seconds)
        rows.append(
            {
                "case": name,
                "mode": mode,
                "median_ms": round(1000 * median, 4),
                "least_ms": round(1000 * min(seconds), 4),
                "ratio": round(median / dense.get(mode, dense["eager"]), 3),
                "rounds": len(seconds),
                **about,
            }
        )
    return rows + [
        {"case": name, "mode": mode, "error": reason, **about}
        for (name, mode), reason in failed.items()
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print a JSON line per case and append it to a file."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda")
    options.add_argument("--dtype", default="bfloat16")
    options.add_argument("--tokens", type=int, default=32768)
    options.add_argument("--dim", type=int, default=1024)
    options.add_argument("--hidden", type=int, default=4096)
    options.add_argument("--experts", type=int, default=64)
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--tables", default="single,double")
    options.add_argument("--eager", action="store_true", help="compile nothing")
    options.add_argument("--out", help="file of JSON lines to add to")
    given = options.parse_args(arguments)
    size = Size(
        given.tokens, given.dim, given.hidden, given.experts, getattr(torch, given.dtype),
        given.device,
    )  # fmt: skip
    for table in given.tables.split(","):
        for row in run(table, size, given.rounds, not given.eager):
            print(json.dumps(row), flush=True)
            if given.out:
                append(given.out, [row])
        if given.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
