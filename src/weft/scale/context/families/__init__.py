"""How each kind of mixer works on shards: what it computes itself, and what it asks of others."""

from weft.scale.context.families import (
    along,
    by_heads,
    global_tokens,
    latents,
    slots,
    sums,
    under_pattern,
)

__all__ = [
    "along",
    "by_heads",
    "global_tokens",
    "latents",
    "slots",
    "sums",
    "under_pattern",
]
