"""Models and layers whose sequence is split over the ranks of a group.

    group = split(model, process_group)     tells every mixer of the model; once
    loss = model(ids, targets=..., ...)     as before: each rank gives the whole batch

A *model* takes whole sequences on every rank and gives whole results; inside, a rank embeds, mixes
and scores its own tokens alone. So all ranks compute the same loss, and gradients are averaged over
them (`average_gradients`, DDP and FSDP do that), as over replicas that read the same rows. With
`targets` a language model joins the losses of tokens, not their hidden states.

A *layer* works on shards: `cut` its input, `join` its output. Each rank's gradients are then those
of its own tokens, and add up to the whole ones (`sum_gradients`).

What a mechanism exchanges is said by its traits (`context_parallel`), and how, in `families/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.kernels.planner.context import outside_graphs
from weft.layers.embedding import Embedder
from weft.layers.marks import Marks, moved
from weft.layers.outputs import TokenLoss
from weft.layers.padding import left_align, real_tokens, restore
from weft.mixers.base import Mixer
from weft.models.trunks.encoder import Trunk
from weft.scale.context.bill import Bill, nothing
from weft.scale.context.exchange import Exchange, Sent
from weft.scale.context.shards import Balance, Shards
from weft.scale.context.world import World


class Given(NamedTuple):
    """What a mixer is called with besides its tokens, all of it of the own shard."""

    valid: Tensor | None = None  # (b, n)
    marks: dict[str, Tensor] = {}  # noqa: RUF012  # never written to
    context: Tensor | None = None  # (b, m, c)
    context_valid: Tensor | None = None  # (b, m)
    source: World | None = None  # of the context


Mix = Callable[[Any, Tensor, Given, World], Tensor]


class ShardedForm(NamedTuple):
    """How mixers of a kind work on shards, and what they send."""

    mix: Mix  # (mixer, own tokens (b, n, c), given, world) -> (b, n, c)
    bill: Callable[[Any, Shards, int, int], Bill]  # (mixer, shards, batch, bytes of a number)
    contiguous: bool = True  # whether shards have to be single runs
    # Bytes that a rank keeps for backward beside its share of what one device keeps.
    held: Callable[[Any, Shards, int, int], int] = lambda *_: 0


FAMILIES: dict[type[Mixer], ShardedForm] = {}


def parallel(*kinds: type[Mixer], bill: Any, **more: Any) -> Callable[[Mix], Mix]:
    """Register how modules of these classes, and those derived from them, mix on shards."""

    def add(mix: Mix) -> Mix:
        for kind in kinds:
            FAMILIES[kind] = ShardedForm(mix, bill, **more)
        return mix

    return add


def family_of(mixer: Mixer) -> ShardedForm:
    """The family of a mixer; one that has none says so."""
    _load()
    for kind in type(mixer).__mro__:
        if kind in FAMILIES and mixer.config.traits.context_parallel and _as_in(kind, mixer):
            return FAMILIES[kind]
    raise Unsupported(
        f"{mixer.config.name} cannot be split over ranks: its traits name no exchange "
        "(context_parallel). Register one with weft.scale.context.parallel, or use cp=1"
    )


def _as_in(kind: type[Mixer], mixer: Mixer) -> bool:
    """Whether a mixer of a derived class computes what its base does."""
    names = ("mix", "attention")
    return all(getattr(type(mixer), name, None) is getattr(kind, name, None) for name in names)


def _load() -> None:
    """The families register themselves."""
    import weft.scale.context.families  # noqa: F401  # it imports this module


class SequenceSplit:
    """A group that shares sequences: what cuts them, joins them and counts what is sent."""

    def __init__(self, group: Any = None, balance: Balance = "none") -> None:
        self.link = Exchange(group)
        self.balance: Balance = balance
        self._lengths: dict[tuple[bool, int], int] = {}  # of what was cut, by the size of a shard
        self.reading = False  # whether a model reads shards now, which begin at their positions

    @property
    def sent(self) -> Sent:
        """Bytes that this rank has sent so far, forward and backward."""
        return self.link.sent

    def shards(self, length: int) -> Shards:
        """How a sequence of this length is split."""
        few = length < 2 * self.link.ranks  # too few for two runs each
        return Shards(length, self.link.ranks, "none" if few else self.balance)

    def cut(self, x: Tensor, *, fill: Any = 0, context: bool = False) -> Tensor:
        """The own part of x (b, n, ...), `fill` where a shard is shorter than others.

        `context`: what other sequences read.
        """
        shards = self.shards(x.shape[1])
        self._lengths[context, shards.size] = shards.length
        index = torch.as_tensor(shards.positions(self.link.rank), device=x.device)
        own = x.index_select(1, index)
        missing = shards.size - len(index)
        if not missing:
            return own
        return torch.cat((own, own.new_full((len(x), missing, *x.shape[2:]), fill)), 1)

    def cut_valid(self, valid: Tensor, *, context: bool = False) -> Tensor:
        """The own part of a mask (b, n) of real tokens, which come first in each row."""
        if (valid[:, 1:] & ~valid[:, :-1]).any():
            raise WeftError(
                "real tokens come first in each row of a sequence that is split over ranks; "
                "move them there before it is cut: weft.layers.padding.left_align(x, valid)"
            )
        return self.cut(valid, fill=False, context=context)

    def places(self, size: int) -> Tensor:
        """The positions of the own shard (size,); padding at its end repeats the last."""
        index = self.world(size).positions
        return nn.functional.pad(index, (0, size - len(index)), value=int(index[-1]))

    def join(self, y: Tensor, length: int | None = None) -> Tensor:
        """Own rows (b, size, ...) of all ranks in the order of the sequence, on every rank."""
        world = self.world(y.shape[1], length)
        flat = y[:, : world.count].flatten(2) if y.dim() > 2 else y[:, : world.count, None]
        here = torch.arange(world.count)
        counts = [world.shards.count(rank) for rank in range(world.ranks)]
        every = self.link.move(flat, [here] * world.ranks, counts)  # by rank
        position = [torch.as_tensor(world.shards.positions(r)) for r in range(world.ranks)]
        every = every[:, torch.cat(position).argsort().to(y.device)]
        return every.reshape(len(y), world.length, *y.shape[2:])

    def world(self, size: int, length: int | None = None, *, context: bool = False) -> World:
        """The world of a sequence whose shards have this size: the last that was cut so."""
        known = length or self._lengths.get((context, size), size * self.link.ranks)
        shards = self.shards(known)
        if shards.size != size:
            raise WeftError(
                f"a shard of {known} tokens over {self.link.ranks} ranks has {shards.size} places; "
                f"got {size}: cut the sequence by the group that split() gave"
            )
        return World(shards, self.link)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up gradients over the ranks: where each had a loss of its own tokens."""
        given = [parameter for parameter in parameters if parameter.requires_grad]
        if not given:
            return
        # A rank whose tokens did not use a parameter adds 0 to what the others have.
        used = torch.tensor([int(p.grad is not None) for p in given], device=given[0].device)
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.link.group)
        for parameter, some in zip(given, used.tolist(), strict=True):
            if some:
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(grad, group=self.link.group)
                parameter.grad = grad

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients over the ranks: where all had the same loss, as models give it."""
        given = list(parameters)
        self.sum_gradients(given)
        for parameter in given:
            if parameter.grad is not None:
                parameter.grad.div_(self.link.ranks)

    def read(
        self,
        trunk: Trunk,
        x: Tensor,
        *,
        valid: Tensor | None = None,
        context: Tensor | None = None,
        context_valid: Tensor | None = None,
        marks: Marks | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What `Trunk.read` gives, whole on every rank: no registers, and the tokens (b, n, c)."""
        n, (x, valid, marks) = x.shape[1], self._enough(x, valid, marks)
        own, order = self._own_tokens(trunk, x, valid, context, context_valid, marks)
        tokens = self.join(own, x.shape[1])
        if valid is not None and order is not None:
            tokens = restore(tokens, order, valid)
        return tokens[:, :0], tokens[:, :n]

    def loss(
        self, model: Any, ids: Tensor, targets: Tensor, chosen: Tensor | None, **given: Any
    ) -> TokenLoss:
        """The loss of each token of a language model, whole on every rank: (b, n)."""
        valid = real_tokens(ids, given.pop("valid", None), given.pop("attention_mask", None))
        trunk = model.trunk
        given = {"context": None, "context_valid": None} | given
        n, (ids, valid, given["marks"]) = ids.shape[1], self._enough(ids, valid, given["marks"])
        own, order = self._own_tokens(trunk, ids, valid, **given)
        chosen = torch.ones_like(targets, dtype=torch.bool) if chosen is None else chosen
        more = (0, ids.shape[1] - n)
        targets, chosen = nn.functional.pad(targets, more), nn.functional.pad(chosen, more)
        if order is not None:
            targets, chosen = targets.gather(1, order), chosen.gather(1, order)
        found = model.output.loss(own, self.cut(targets), self.cut(chosen, fill=False))
        loss, best = (self.join(part, ids.shape[1]) for part in found)
        if order is not None:
            back = order.argsort(1)
            loss, best = loss.gather(1, back), best.gather(1, back)
        return TokenLoss(loss[:, :n], best[:, :n])

    def _enough(
        self, x: Tensor, valid: Tensor | None, marks: Marks | None
    ) -> tuple[Tensor, Tensor | None, Marks | None]:
        """A token for each rank at least: shorter sequences are padded at their end."""
        missing = self.link.ranks - x.shape[1]
        if missing <= 0:
            return x, valid, marks
        valid = (
            torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if valid is None else valid
        )
        channels = (0, 0) * (x.dim() - 2)
        marks = {
            name: nn.functional.pad(mark, (0, missing)) for name, mark in (marks or {}).items()
        }
        x = nn.functional.pad(x, (*channels, 0, missing))
        return x, nn.functional.pad(valid, (0, missing)), marks or None

    def _own_tokens(
        self,
        trunk: Trunk,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        marks: Marks | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The own tokens after the stack (b, size, c), and the order that real tokens were in."""
        order, given = None, {}
        if valid is not None:
            # Real tokens move to the front of whole rows, before these are cut.
            x, real, order = trunk.align(x, valid)
            valid, marks = self.cut_valid(real), moved(marks, order)
            given = {"valid": valid, "aligned": True}
        if context is not None:
            if context_valid is not None:
                context, context_valid, _ = left_align(context, context_valid)
                context_valid = self.cut_valid(context_valid, context=True)
            context = self.cut(context, context=True)
        marks = {name: self.cut(mark) for name, mark in (marks or {}).items()}
        x = self.cut(x)
        self.reading = True
        try:
            entered = trunk.begin(x, valid, aligned=True)[0]
        finally:
            self.reading = False
        given |= {"context": context, "context_valid": context_valid, "marks": marks or None}
        return trunk.end(trunk.stack(entered, **given), valid)[1], order

    @outside_graphs  # what ranks exchange is planned by the host
    def run(
        self,
        mixer: Mixer,
        x: Tensor,
        valid: Tensor | None,
        context: Tensor | None,
        context_valid: Tensor | None,
        marks: dict[str, Tensor],
    ) -> Tensor:
        """What `Mixer.forward` does on a shard (b, size, c)."""
        world, source = self.world(x.shape[1]), None
        if context is not None:
            source = self.world(context.shape[1], context=True)
            context = context[:, : source.count]
            context_valid = None if context_valid is None else context_valid[:, : source.count]
        own = slice(world.count)
        given = Given(
            None if valid is None else valid[:, own],
            {name: mark[:, own] for name, mark in marks.items()},
            context,
            context_valid,
            source,
        )
        x_own = x[:, own]
        if valid is not None:
            x_own = x_own.masked_fill(~valid[:, own, None], 0.0)
        y = family_of(mixer).mix(mixer, x_own, given, world)
        if valid is not None:
            y = y.masked_fill(~valid[:, own, None], 0.0)
        return nn.functional.pad(y, (0, 0, 0, x.shape[1] - world.count))


def split(model: nn.Module, group: Any = None, *, balance: Balance = "none") -> SequenceSplit:
    """Tell every mixer and embedding of a model that sequences are split over a group's ranks.

    `group` is a process group or a DeviceMesh of one axis; None: all processes. What the model
    reads and gives is whole on every rank, what a layer alone reads and gives are shards. With
    balance="head_tail" a rank holds a run from the front and one from the back, which gives each
    as much work under a causal pattern; mechanisms that follow the order of tokens refuse it.
    """
    if hasattr(group, "get_group"):
        group = group.get_group()
    found = SequenceSplit(group, balance)
    refuse(model)
    for module in model.modules():
        if isinstance(module, Mixer):
            family = family_of(module)
            if family.contiguous and balance != "none":
                raise Unsupported(
                    f"{module.config.name} follows the order of tokens, so its shards are single "
                    f"runs; got balance={balance!r}, use balance='none'"
                )
            module.shards = found
        elif isinstance(module, Embedder | Trunk):
            module.shards = found
    return found


def refuse(model: nn.Module) -> None:
    """Refuse modules besides mixers that read other tokens, by name and with the way out."""
    from weft.scale.context.refusals import reason_against

    for name, module in model.named_modules():
        reason = reason_against(module)
        if reason:
            raise Unsupported(
                f"{name or type(module).__name__} cannot be split over ranks: {reason}"
            )


def costs_of(model: nn.Module, shards: Shards, batch: int, itemsize: int) -> tuple[Bill, int]:
    """What the mixers of a model send for one forward and backward pass, and keep of it."""
    refuse(model)
    bill, held = nothing(shards.ranks), 0
    for mixer in model.modules():
        if isinstance(mixer, Mixer):
            family = family_of(mixer)
            bill = bill + family.bill(mixer, shards, batch, itemsize)
            held += family.held(mixer, shards, batch, itemsize)
    return bill, held
