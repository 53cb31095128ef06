"""Processes that share sequences, for tests: a world runs many checks and reports each.

    run_cases({2: cases, 4: cases})    starts this file once, which forks a process per rank (gloo)

A case is a dict; the functions in CHECKS say what its keys mean. A case that raises ends its world,
since the ranks are no longer in step; what is left runs in a new one.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT = 120  # seconds for one exchange


def run_cases(worlds: dict[int, list[dict[str, Any]]]) -> dict[int, list[dict[str, Any]]]:
    """What each case found, in order, by the number of ranks."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps(worlds),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])
    found = json.loads(done.stdout.splitlines()[-1])
    return {int(ranks): reports for ranks, reports in found.items()}


def compare(case: dict[str, Any], skip: int | None = None) -> dict[str, Any]:
    """Split against unsplit: the largest difference of output and gradients, and bytes sent.

    mixer (a spec), causal, n, lengths (real tokens of each row), positions, heads, kv_heads,
    context (tokens of another sequence), marks, balance, projection
    """
    import copy

    import torch

    from weft.scale.context import split

    mixer, given, x = _made(case)
    whole = copy.deepcopy(mixer)
    x_whole = x.clone().requires_grad_()
    context = given.pop("context", None)
    c_whole = None if context is None else context.clone().requires_grad_()
    more = {} if c_whole is None else {"context": c_whole}
    y = whole(x_whole, **given, **more)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y).sin()
    (y * weight).sum().backward()

    group = split(mixer, balance=case.get("balance", "none"))
    leave_out(group.link, skip)
    x_own = group.cut(x).requires_grad_()
    own = {
        name: group.cut_valid(t) if name == "valid" else group.cut(t) for name, t in given.items()
    }
    size = x_own.shape[1]
    c_own = None
    if context is not None:
        c_own = group.cut(context, context=True).requires_grad_()
        own |= {"context": c_own}
    group.sent.reset()
    group.link.calls = 0
    y_own = mixer(x_own, **own)
    (y_own * group.cut(weight)).sum().backward()
    sent, calls = (group.sent.forward, group.sent.backward), group.link.calls
    group.sum_gradients(mixer.parameters())
    assert y_own.shape[1] == size
    differences = {"out": _far(group.join(y_own, x.shape[1]), y)}
    differences["x"] = _far(group.join(x_own.grad, x.shape[1]), x_whole.grad)
    if context is not None and c_own is not None:
        differences["context"] = _far(group.join(c_own.grad, context.shape[1]), c_whole.grad)
    for (name, a), b in zip(mixer.named_parameters(), whole.parameters(), strict=True):
        if b.grad is None and a.grad is None:
            continue
        zero = torch.zeros_like(a)
        a_grad, b_grad = (zero if p.grad is None else p.grad for p in (a, b))
        differences[name] = _far(a_grad, b_grad)
    buffers = zip(mixer.named_buffers(), whole.buffers(), strict=True)
    differences |= {name: _far(a, b) for (name, a), b in buffers if a.is_floating_point()}
    worst = max(differences, key=lambda name: differences[name])
    found = {"worst": worst, "far": differences[worst], "calls": calls}
    return found | _billed(mixer, group, case, x, sent)


def _billed(mixer: Any, group: Any, case: dict[str, Any], x: Any, sent: tuple[int, int]) -> Any:
    """The bytes sent, and those that were foretold where nothing but x is given."""
    import torch

    from weft.scale.context import family_of

    if case.get("lengths") or case.get("context") or case.get("marks"):
        return {"sent": list(sent)}
    bill = family_of(mixer).bill(mixer, group.shards(x.shape[1]), len(x), x.element_size())
    mine = [int(bill.forward[group.link.rank]), int(bill.backward[group.link.rank])]
    right = torch.tensor([int(list(sent) == mine)])
    torch.distributed.all_reduce(right, torch.distributed.ReduceOp.MIN)
    return {"sent": list(sent), "foretold": mine, "right": bool(right)}


def leave_out(link: Any, skip: int | None) -> None:
    """Count the exchanges of a link; the one numbered `skip` brings zeros, or sums nothing."""
    swap, reduce = link.swap, link.reduce
    link.calls = 0

    def counted_swap(rows: Any, sizes: Any, receives: Any, way: Any) -> Any:
        came = swap(rows, sizes, receives, way)
        link.calls += 1
        return came * 0 if link.calls - 1 == skip else came

    def counted_reduce(x: Any, operation: Any, way: Any) -> Any:
        total = reduce(x, operation, way)
        link.calls += 1
        return x.clone() if link.calls - 1 == skip else total

    link.swap, link.reduce = counted_swap, counted_reduce


def _far(a: Any, b: Any) -> float:
    """The largest difference, relative to the largest number."""
    scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
    return float((a.detach() - b.detach()).abs().max()) / scale if b.numel() else 0.0


def _made(case: dict[str, Any]) -> Any:
    import torch

    from weft.mixers import MIXERS, Frame

    torch.manual_seed(1)
    heads = case.get("heads", 4)
    frame = Frame(
        dim=case.get("dim", 16),
        heads=heads,
        kv_heads=case.get("kv_heads"),
        causal=case["causal"],
        length=case.get("longest", 64),
        layer=case.get("layer", 0),
        positions=_positions(case.get("positions")),
        dropout=case.get("dropout", 0.0),
        **({"projection": case["projection"]} if "projection" in case else {}),
    )
    config = MIXERS.parse(case["mixer"])
    mixer = config.build(frame).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    n, b = case["n"], case.get("batch", 2)
    x = torch.randn(b, n, frame.dim, dtype=torch.float64)
    given: dict[str, Any] = {}
    if "lengths" in case:
        lengths = torch.tensor(case["lengths"])
        x = torch.randn(len(lengths), n, frame.dim, dtype=torch.float64)
        given["valid"] = torch.arange(n) < lengths[:, None]
    if "context" in case:
        given["context"] = torch.randn(len(x), case["context"], frame.dim, dtype=torch.float64)
    for name in case.get("marks", []):
        given[name] = _mark(name, len(x), n)
    mixer.train(case.get("train", False))
    return mixer, given, x


def _positions(text: str | None) -> Any:
    from weft.layers.positions import POSITIONS

    return None if text is None else POSITIONS.parse(text)


def _mark(name: str, b: int, n: int) -> Any:
    import torch

    if name == "segments":
        return (torch.arange(n) * 3 // n).expand(b, n).contiguous()
    if name == "is_global":
        return torch.rand(b, n) < 0.15
    return torch.randint(-1, 3, (b, n))


def main(rank: int, ranks: int, folder: str, cases: list[dict[str, Any]]) -> None:
    """One rank: run all cases, in step with the others."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    limit, store = timedelta(seconds=TIMEOUT), f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=limit)
    for case in cases:
        torch.manual_seed(0)
        try:
            found = CHECKS[case.get("check", "compare")](case)
        except Exception as error:
            text = "".join(traceback.format_exception(error)[-4:])
            # Other ranks are told by the lost connection, which is not the reason.
            cut_off = "onnection" in text or "imed out" in text
            _write(folder, "errors", {"error": text, "cut_off": cut_off})
            os._exit(1)
        if rank == 0:
            _write(folder, "found", found)
    dist.barrier()
    dist.destroy_process_group()


def _write(folder: str, name: str, report: dict[str, Any]) -> None:
    with (Path(folder) / name).open("a") as file:
        file.write(json.dumps(report) + "\n")


def world(ranks: int, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports of one world: of all cases, or up to one that raised."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, folder, cases)
        workers = [fork.Process(target=main, args=(rank, *given)) for rank in range(ranks)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        files = [Path(folder) / name for name in ("found", "errors")]
        found, errors = ([] if not f.exists() else f.read_text().splitlines() for f in files)
        reports = [json.loads(line) for line in found][: len(cases)]
        if len(reports) < len(cases) or errors:
            lost = [json.loads(line) for line in errors] or [{"error": "a rank died"}]
            reports = reports[: len(cases) - 1]
            reports.append(min(lost, key=lambda report: report.get("cut_off", False)))
        return reports


def _skipped(case: dict[str, Any]) -> dict[str, Any]:
    """Each exchange left out in turn: the difference that this makes."""
    right = compare(case)
    each = [_number(compare(case, skip=a)["far"]) for a in range(right["calls"])]
    return {"calls": right["calls"], "least": min(each, default=None), "each": each}


def _number(far: float) -> float:
    """A result that is not a number is as far as can be."""
    return far if far == far else float("inf")


def model(case: dict[str, Any], skip: int | None = None) -> dict[str, Any]:
    """A model with its loss: split against unsplit, whole batches in, gradients averaged.

    settings (of a model config), lengths, padding (where: "left" or "right"), compiled, source
    (tokens of an encoder-decoder's source), balance
    """
    import copy

    import torch

    from weft.models import MODELS
    from weft.scale.context import split

    torch.manual_seed(2)
    built = MODELS.read(case["settings"]).build().double()
    ids = torch.randint(0, 11, (3, case["n"]))
    valid = None
    if "lengths" in case:
        index, lengths = torch.arange(case["n"]), torch.tensor(case["lengths"])[:, None]
        left = case.get("padding") == "left"
        valid = index >= case["n"] - lengths if left else index < lengths
    source = torch.randint(0, 11, (3, case["source"])) if "source" in case else None
    whole = copy.deepcopy(built)
    loss_of(whole, ids, valid, source).backward()
    group = split(built, balance=case.get("balance", "none"))
    leave_out(group.link, skip)
    run = torch.compile(built, backend="eager") if case.get("compiled") else built
    loss = loss_of(run, ids, valid, source)
    group.link.calls = 0 if skip is None else group.link.calls
    loss.backward()
    calls = group.link.calls
    group.average_gradients(built.parameters())
    differences = {"loss": _far(loss, loss_of(whole, ids, valid, source))}
    for (name, a), b in zip(built.named_parameters(), whole.parameters(), strict=True):
        if b.grad is not None and a.grad is not None:
            differences[name] = _far(a.grad, b.grad)
        assert (a.grad is None) == (b.grad is None), name
    worst = max(differences, key=lambda name: differences[name])
    return {"worst": worst, "far": differences[worst], "calls": calls}


def loss_of(built: Any, ids: Any, valid: Any, source: Any = None) -> Any:
    """Of a language model its next tokens, of a classifier the first token of each document."""
    import torch

    from weft.objectives.batch import ModelInputs
    from weft.objectives.causal_lm import next_token_loss

    plain = getattr(built, "_orig_mod", built)
    if source is not None:
        scores = built(ids, source=source, valid=valid)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids.flatten())
    if hasattr(plain, "output"):
        found = next_token_loss(built, ModelInputs(ids, valid))
        return found.total / found.count
    scores = built(ids, valid=valid)
    return torch.nn.functional.cross_entropy(scores, ids[:, 0] % scores.shape[1])


def memory(case: dict[str, Any]) -> dict[str, Any]:
    """Bytes that backward keeps: of the whole model, and of each rank.

    settings (of a model config), n
    """
    import copy

    import torch

    from weft.models import MODELS
    from weft.scale.context import split

    built = MODELS.read(case["settings"]).build()
    whole = _kept(copy.deepcopy(built), torch.zeros(2, case["n"], dtype=torch.long))
    group = split(built)
    mine = torch.tensor([_kept(built, torch.zeros(2, case["n"], dtype=torch.long))])
    each = [torch.zeros_like(mine) for _ in range(group.link.ranks)]
    torch.distributed.all_gather(each, mine)
    return {"whole": whole, "ranks": [int(one) for one in each]}


def _kept(built: Any, ids: Any) -> int:
    """Bytes of all storages that a loss keeps for its backward, parameters left out."""
    import torch

    parameters = {p.untyped_storage().data_ptr() for p in built.parameters()}
    held: dict[int, Any] = {}

    def pack(x: Any) -> Any:
        held[x.untyped_storage().data_ptr()] = x  # held, so that no address comes twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = loss_of(built, ids, None)
    loss.backward()
    return sum(x.untyped_storage().nbytes() for at, x in held.items() if at not in parameters)


def window(case: dict[str, Any]) -> dict[str, Any]:
    """Bytes that a rank sends under a pattern at several lengths, and the formula's."""
    import torch

    from weft.patterns import pattern
    from weft.scale.context import Exchange, Shards, World, attention_bill
    from weft.scale.context.attention import attend

    link, found = Exchange(), {}
    for length in case["lengths"]:
        shards = Shards(length, link.ranks)
        world, reads = World(shards, link), pattern(case["pattern"])
        q, k, v = torch.randn(3, 1, 2, world.count, 4, requires_grad=True).unbind(0)
        link.sent.reset()
        attend(q, k, v, reads, world)[0].sum().backward()
        bill = attention_bill(reads, shards, heads=2, kv_heads=2, width=4, itemsize=4)
        mine = [int(bill.forward[link.rank]), int(bill.backward[link.rank])]
        right = torch.tensor([int(mine == [link.sent.forward, link.sent.backward])])
        torch.distributed.all_reduce(right, torch.distributed.ReduceOp.MIN)
        found[str(length)] = {"bill": bill.forward.tolist(), "right": bool(right)}
    return {"each": found}


def dropout(case: dict[str, Any]) -> dict[str, Any]:
    """With dropout, the gradient of a split mixer against a difference of its own outputs."""
    import torch

    from weft.scale.context import split

    mixer, _, x = _made(case)
    group = split(mixer.train())
    x, way = group.cut(x).requires_grad_(), group.cut(torch.randn_like(x))
    weight = torch.randn_like(x)

    def total(moved: Any) -> Any:
        torch.manual_seed(5 + group.link.rank)
        return (mixer(moved) * weight).sum()

    total(x).backward()
    step = 1e-5
    with torch.no_grad():
        slope = (total(x + step * way) - total(x - step * way)) / (2 * step)
    both = torch.stack([slope.detach(), (x.grad * way).sum()])
    torch.distributed.all_reduce(both)
    return {"far": float((both[0] - both[1]).abs() / both[0].abs())}


CHECKS = {"compare": compare, "skipped": _skipped, "model": model, "window": window}
CHECKS |= {"dropout": dropout, "memory": memory}

if __name__ == "__main__":
    import torch  # noqa: F401  # loaded once, before the ranks fork

    import weft.scale.context.families  # noqa: F401

    every: dict[str, list[dict[str, Any]]] = {}
    for ranks, cases in json.loads(sys.stdin.read()).items():
        every[ranks] = []
        while len(every[ranks]) < len(cases):
            every[ranks] += world(int(ranks), cases[len(every[ranks]) :])
    print(json.dumps(every))
