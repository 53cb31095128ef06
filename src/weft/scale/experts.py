"""Expert parallel: each rank holds some of the experts, and tokens travel to them.

    rows by expert ── all-to-all ──> owners: E_i on the rows of all ranks ── all-to-all ──> back

Ranks of the `ep` mesh read different rows of a batch. How many rows go where is known to the host
before they travel, which waits for the device once per layer. Capacity is settled before
(`kernels/experts/dispatch.within_capacity`), so no slot travels empty.

Paper: Lepikhin et al. 2020, GShard, section 3, https://arxiv.org/abs/2006.16668
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.device_mesh import DeviceMesh

from weft.errors import WeftError
from weft.feedforward.experts import Experts
from weft.feedforward.routing import RoutedFeedForward
from weft.kernels.experts.dispatch import ExpertSlots
from weft.scale.locally import RankParts, placed


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave each rank of the `ep` mesh its share of the experts of every routed feed-forward."""
    routed = [each for each in model.modules() if isinstance(each, RoutedFeedForward)]
    if not routed:
        raise WeftError(
            f"ep={mesh.size()} splits experts, and this model has none; set ep = 1, or a "
            "feedforward such as gshard(experts=8)"
        )
    for each in routed:
        each.experts = SplitExperts(each.experts, mesh)


class SplitExperts(Experts):
    """The experts of one layer, of which this rank computes count / ep."""

    elsewhere = True

    def __init__(self, whole: Experts, mesh: DeviceMesh) -> None:
        nn.Module.__init__(self)
        ways = mesh.size()
        if whole.count % ways:
            raise WeftError(
                f"ep splits the experts evenly: experts={whole.count} is not a multiple of "
                f"ep={ways}; change [training.mesh] ep, or the experts"
            )
        self.count, self.activation, self.dropout = whole.count, whole.activation, whole.dropout
        self.to_hidden, self.to_gate, self.to_out = whole.to_hidden, whole.to_gate, whole.to_out
        for module in self.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    own = placed(parameter, mesh, 0)
                    module._parameters[name] = nn.Parameter(own, parameter.requires_grad)
        self.split = RankParts(mesh, {name: 0 for name, _ in self.named_parameters()}, {})
        self.train(whole.training)

    def compute(self, x: Tensor, places: ExpertSlots) -> Tensor:
        """Every slot (s, c) through its expert, wherever that is; others stay 0."""
        mesh = self.split.mesh
        ways, group = mesh.size(), mesh.get_group()
        assert places.ends is not None  # capacity is settled before
        counts = torch.diff(places.ends, prepend=places.ends.new_zeros(1))  # (e,) of this rank
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        arriving = arriving.view(ways, -1)  # (ranks, e / ranks)
        sent = counts.view(ways, -1).sum(1).tolist()
        taken = arriving.sum(1).tolist()
        here = all_to_all_single(x[: sum(sent)], taken, sent, group)
        order = _by_expert(arriving)
        ends = arriving.sum(0).cumsum(0).int()
        with self.split.locally(self):
            slots = ExpertSlots(order, order, None, ends)
            y = super().compute(here.index_select(0, order), slots)
        back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
        y = all_to_all_single(y.index_select(0, back), sent, taken, group)
        return torch.cat((y, y.new_zeros(len(x) - len(y), y.shape[1])))


def _by_expert(arriving: Tensor) -> Tensor:
    """Rows arrive by rank, then expert, (ranks, e) of each; the order by expert, then rank."""
    ranks, experts = arriving.shape
    number = torch.arange(experts, device=arriving.device).expand(ranks, experts)
    expert = number.flatten().repeat_interleave(arriving.flatten())
    return expert.argsort(stable=True)


def expert_modules(model: nn.Module) -> list[Any]:
    """The experts of a model that are split."""
    return [each for each in model.modules() if isinstance(each, SplitExperts)]
