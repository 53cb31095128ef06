"""One rank of a data-parallel training with LayerDrop: `python layer_drop_rank.py RANK STORE TWIN`.

Prints, as JSON, which layers ran at each step and the gradients that all ranks agreed on.
TWIN is a mistake made on purpose: "none", "own_seed" or "no_gradients".
"""

import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
from model_parts import DIM, RunningMean, normal, stack
from torch.nn.parallel import DistributedDataParallel

from weft.models import LayerDrop
from weft.models.stack import depth

RANKS, STEPS = 2, 4


def build(seed: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = stack(order="sf" * 4, mixer=RunningMean(), depth=LayerDrop(rate=0.5, seed=seed))
    return config.build(causal=True).double()


def data(rank: int, step: int) -> torch.Tensor:
    return normal(2, 5, DIM, seed=10 * step + rank)


def main(rank: int, store: str, twin: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    if twin == "no_gradients":
        depth._Unused.apply = staticmethod(lambda x, *parameters: x)
    module = build(seed=rank if twin == "own_seed" else 0)
    parallel = DistributedDataParallel(module)
    kept, gradients = [], []
    for step in range(STEPS):
        parallel(data(rank, step)).square().sum().backward()
        kept.append(list(module.depth.kept))
        gradients.append([float(p.grad.square().sum()) for p in module.parameters()])
        parallel.zero_grad()
    print(json.dumps({"kept": kept, "gradients": gradients}))


def leave(code: int) -> None:
    """End at once: gloo now and then waits for ever for a rank that has left before."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), *sys.argv[2:])
    except BaseException:
        traceback.print_exc()
        leave(1)
    leave(0)
