"""Modules besides mixers that read other tokens: they cannot work on shards, and say why."""

from __future__ import annotations

from torch import nn

from weft.feedforward.product_key import TokenBatchNorm
from weft.feedforward.with_sru import Recurrence
from weft.layers.embedding import Embedder
from weft.models.exits.early_exit import EarlyExitModule
from weft.models.trunks.funnel import FunnelModule
from weft.models.trunks.perceiver_io import PerceiverIOModule
from weft.models.trunks.power_bert import PowerBertModule
from weft.models.trunks.swin_transformer import SwinTransformerModule
from weft.models.trunks.transparent import Transparent

REASONS: dict[type[nn.Module], str] = {
    FunnelModule: "its layers shorten the sequence, so shards would have to be cut anew",
    PowerBertModule: "it keeps the tokens that rank highest in the whole sequence",
    PerceiverIOModule: "its latents read the whole input; a perceiver layer in an encoder can",
    SwinTransformerModule: "its patches and merges join pixels of several shards",
    EarlyExitModule: "its exits read the whole sequence",
    Recurrence: "with_sru runs from token to token; use another feed-forward, or an sru mixer",
    TokenBatchNorm: "its statistics are those of all tokens; use batch_norm=false",
    Transparent: "it mixes the states of all layers; use transparent=false",
}


def reason_against(module: nn.Module) -> str:
    """Why a module cannot work on shards; "" where it can."""
    for kind, reason in REASONS.items():
        if isinstance(module, kind):
            return reason
    if isinstance(module, Embedder) and module.registers is not None:
        return "registers stand in front of the whole sequence; use registers=0"
    return ""
