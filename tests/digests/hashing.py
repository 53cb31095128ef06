"""What cases are made of: digests, seeds, inputs, and modules with gradients.

All random numbers of a case come from a seed derived from its name without settings and precision,
so neither the order of cases nor the spelling of a spec matters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from weft_names import penalties

from rounding import normal

Case = Callable[[], dict[str, Any]]
Named = Iterator[tuple[str, Case]]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
DIM, HEADS, LENGTH, LONGEST, VOCAB = 32, 4, 70, 160, 24
PIECES = (33, *[1] * 9, 20, 8)  # a prompt, single tokens, longer steps: 70 in all


def seed_of(*words: Any) -> int:
    """A seed from words."""
    return int(hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()[:8], 16)


def ids(*shape: int, seed: int) -> Tensor:
    """Tokens."""
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def padding(length: int) -> Tensor:
    """(2, length): the first row has padding in front and inside, the second behind."""
    valid = torch.ones(2, length, dtype=torch.bool)
    valid[0, : length // 7] = valid[0, length // 2 : length // 2 + 3] = False
    valid[1, length - length // 3 :] = False
    return valid


def built(make: Callable[[], nn.Module], seed: int, dtype: torch.dtype, size: float) -> nn.Module:
    """A module with its parameters moved away from zeros and ones."""
    torch.manual_seed(seed)
    module = make()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return module.to(dtype)


def weights(module: nn.Module) -> list[Any]:
    """Names and values of parameters and buffers, by name."""
    state = module.state_dict()
    return [part for name in sorted(state) for part in (name, state[name])]


def learned(module: nn.Module, outputs: Iterable[Tensor], inputs: list[Tensor], seed: int) -> dict:
    """Digests of a forward pass and of the gradients of a weighted sum of its outputs."""
    outputs = list(outputs)
    loss = penalties(module)
    for i, y in enumerate(outputs):
        term = (y * normal(*y.shape, seed=seed + i + 1, dtype=y.dtype)).sum()
        loss = term if loss is None else loss + term
    wanted = [x for x in (*inputs, *module.parameters()) if x.requires_grad]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return {"weights": weights(module), "output": outputs, "gradients": found}


@torch.no_grad()
def stepped(module: Any, x: Tensor, pieces: tuple[int, ...] = PIECES, **given: Any) -> dict:
    """The outputs of `step`, and how much the state holds after each."""
    state, found = module.start(len(x), **given), []
    for piece in x.split(pieces, dim=1):
        y, state = module.step(piece, state)
        found += [y, state.size()]
    return {"weights": weights(module), "output": found}
