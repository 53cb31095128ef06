"""Recomputing a sublayer exactly as it ran: random numbers, precision, buffers and choices.

Backward can call a sublayer a second time instead of storing its activations. That is the same
function only if dropout draws the same numbers, autocast is as it was, buffers that a forward
updates (running means, cluster centres) hold their old values and are not updated twice, and
discrete choices are not made anew (`layers/choice.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from weft.layers.choice import ChoiceRecord
from weft.models.stack.sublayer import StackInputs, Sublayer


class Moment:
    """The random state, precision and buffers of now, for running `module` again later.

    The run that will be repeated stands inside `record`.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.device, self.buffers = device, BufferSnapshot(module)
        self.choices = ChoiceRecord(module)
        self.cpu_random = torch.get_rng_state()
        self.cuda_random = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        self.autocast = torch.is_autocast_enabled(device.type)
        self.autocast_dtype = torch.get_autocast_dtype(device.type)

    def record(self) -> AbstractContextManager[None]:
        """Keep the choices of the run inside the `with`."""
        return self.choices.record()

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Be in this moment inside the `with`, and in the present again after it."""
        cuda = [] if self.cuda_random is None else [self.device]
        precision = torch.autocast(
            self.device.type, dtype=self.autocast_dtype, enabled=self.autocast
        )
        past = _both(self.buffers.replay(), self.choices.replay())
        with torch.random.fork_rng(devices=cuda), precision, past:
            torch.set_rng_state(self.cpu_random)
            if self.cuda_random is not None:
                torch.cuda.set_rng_state(self.cuda_random, self.device)
            yield


class BufferSnapshot:
    """Copies of a module's buffers while it trains; in evaluation no forward changes them."""

    def __init__(self, module: nn.Module) -> None:
        self.values: list[tuple[nn.Module, str, Tensor]] = [
            (owner, name, buffer.clone())
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
            if owner.training
        ]

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Put the copies in place of the buffers; updates inside the `with` go to the copies."""
        # Tensors are exchanged, not overwritten: autograd may hold either for its own use.
        present = [(owner, name, getattr(owner, name)) for owner, name, _ in self.values]
        with ExitStack() as after:
            for owner, name, value in present:
                after.callback(setattr, owner, name, value)
            for owner, name, value in self.values:
                setattr(owner, name, value)
            yield


def checkpointed(sublayer: Sublayer, x: Tensor, given: StackInputs) -> Tensor:
    """`sublayer(x, given)`; backward recomputes it from x instead of storing what is inside."""
    buffers, choices = BufferSnapshot(sublayer), ChoiceRecord(sublayer)
    if not buffers.values and not choices.recorded:
        return checkpoint(sublayer, x, given, use_reentrant=False)
    return checkpoint(
        sublayer,
        x,
        given,
        use_reentrant=False,
        context_fn=lambda: (choices.record(), _both(buffers.replay(), choices.replay())),
    )


@contextmanager
def _both(*contexts: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as inside:
        for context in contexts:
            inside.enter_context(context)
        yield
