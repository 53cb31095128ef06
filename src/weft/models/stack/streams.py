"""Reading several streams of one text at once: content that is known, and queries about it.

A content stream holds tokens, a query stream holds places whose tokens must not be known. Both run
through the same layers, and keys and values come from the content alone. So the streams can be
concatenated into one sequence: who reads whom is a mask, and queries are never read.

    forward of [content, queries]  =  content stream and query stream, layer by layer

which is exact for norms, residuals and feed-forwards, because these see one token at a time. (In
training, experts with a capacity and batch norms look at all tokens of a batch, here as elsewhere.)

Paper: Yang et al. 2019, XLNet, section 2.3, https://arxiv.org/abs/1906.08237
"""

from __future__ import annotations

from torch import Tensor

from weft.errors import Unsupported
from weft.mixers.base.masked_mix import check_masked
from weft.models.stack.sublayer import FeedForwardSublayer, SelfSublayer
from weft.models.trunks.encoder import EncoderModule


def read_streams(
    trunk: EncoderModule, embedded: Tensor, *, seen: Tensor, places: Tensor, valid: Tensor
) -> Tensor:
    """Embedded tokens (b, n, c) of all streams -> (b, n, c).

    Token i reads token j where seen (b, n, n); places (b, n) are where tokens stand in the text,
    valid (b, n) is True where there is one.
    """
    check_streams(trunk)
    return trunk.stack(trunk.enter(embedded), valid=valid, seen=seen, places=places)


def check_streams(trunk: EncoderModule) -> None:
    """Refuse a trunk in which a token can learn of another one past the mask."""
    if trunk.registers:
        raise Unsupported(
            "registers read all tokens and are read by all, so a query would learn through them "
            f"what it may not see; got registers={trunk.registers}, use registers=0"
        )
    if getattr(trunk.config.stack.depth, "signal", None) == "sinusoidal":
        raise Unsupported(
            "a universal stack takes positions from the index in the tensor, and streams "
            "are concatenated; use universal(signal='learned')"
        )
    for sublayer in trunk.stack.sublayers:
        if isinstance(sublayer, SelfSublayer):
            check_masked(sublayer.body)
        elif not isinstance(sublayer, FeedForwardSublayer) or hasattr(sublayer.body, "start"):
            raise Unsupported(
                f"{type(sublayer.body).__name__} is neither attention nor a feed-forward without "
                "memory, so it may mix tokens past the mask; use an order of 's' and 'f'"
            )
