"""Language models: scores over the vocabulary at every position.

    scores = trunk(ids) Eᵀ / √c,   E the table of the embedding (tied)
    scores = trunk(ids) Hᵀ,        H a matrix of its own

On a Decoder it predicts the next token and generates; on an Encoder it fills in masked tokens; on
an EncoderDecoder it writes a target for a source. A matrix of its own starts as N(0, 0.02).

Paper (tying): Press, Wolf 2016, https://arxiv.org/abs/1608.05859
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import Unsupported, WeftError
from weft.models.decoder import Decoder, DecoderState
from weft.models.encoder import Encoder
from weft.models.encoder_decoder import EncoderDecoder
from weft.models.generation import Sampling, generate
from weft.models.registry import MODELS


@MODELS.register("language_model")
@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A trunk over tokens and the scores of the next, or the missing, token."""

    trunk: Encoder | Decoder | EncoderDecoder
    tied: bool = True  # scores use the table of the embedding

    def __post_init__(self) -> None:
        if not isinstance(self.trunk, Encoder | Decoder | EncoderDecoder):
            raise WeftError(
                f"the trunk is an Encoder, a Decoder or an EncoderDecoder; got {self.trunk!r}"
            )
        if self.trunk.embedding.vocab is None:
            raise WeftError(
                "a language model scores tokens, so its embedding has a vocab; "
                f"got channels={self.trunk.embedding.channels}"
            )
        if self.tied and self.trunk.embedding.bumps is not None:
            raise WeftError(
                "tied scores use the table of the embedding, and one with bumps has none; "
                "set tied=False"
            )

    def build(self) -> LanguageModelModule:
        """The module."""
        return LanguageModelModule(self)


class LanguageModelModule(nn.Module):
    """Ids (b, n) -> scores (b, n, vocab)."""

    def __init__(self, config: LanguageModel) -> None:
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        self.head = None
        if not config.tied:
            rows = config.trunk.embedding.vocab, config.trunk.dim
            self.head = nn.Parameter(torch.randn(rows) * 0.02)

    def forward(
        self,
        ids: Tensor,
        *,
        valid: Tensor | None = None,
        source: Tensor | None = None,
        source_valid: Tensor | None = None,
    ) -> Tensor:
        """Scores (b, n, vocab) before the softmax; a source (b, m) for an encoder-decoder."""
        extra = self._source(source, source_valid)
        return self.scores(self.trunk(ids, valid=valid, **extra))

    def scores(self, hidden: Tensor) -> Tensor:
        """What the trunk gave (..., c) -> (..., vocab)."""
        if self.head is not None:
            return F.linear(hidden, self.head)
        # Rows of the table are as long as √c, so that they make a stream of unit variance.
        return F.linear(hidden * hidden.shape[-1] ** -0.5, self.trunk.embedding.table)

    def start(
        self, batch: int = 1, *, source: Tensor | None = None, source_valid: Tensor | None = None
    ) -> DecoderState:
        """The state before the first token."""
        self._check_causal()
        return self.trunk.start(batch, **self._source(source, source_valid))

    def step(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """New ids (b, n) -> scores (b, n, vocab), and the next state; the old one is consumed."""
        hidden, state = self.trunk.step(ids, state)
        return self.scores(hidden), state

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the mixers' states hold after this many tokens."""
        self._check_causal()
        return self.trunk.state_size(tokens)

    def generate(
        self,
        ids: Tensor | Sequence[Tensor],
        max_new_tokens: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: int | Sequence[int] | None = None,
        source: Tensor | None = None,
        source_valid: Tensor | None = None,
    ) -> Tensor | list[Tensor]:
        """Continue prompts: (b, n) -> (b, n + new), or rows (n,) of any lengths -> a list.

        Temperature 0 takes the best token. Otherwise tokens are drawn from the `top_k` best, or
        from the smallest set that holds probability `top_p`; each row has its own random numbers,
        set by `seed` and the row's number alone (without a seed: by torch's global one). A row
        ends after a token of `stop`, which is kept; in a (b, n + new) result it is repeated.
        """
        self._check_causal()
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        ends = {stop} if isinstance(stop, int) else set(stop or ())
        extra = self._source(source, source_valid)
        return generate(self, ids, max_new_tokens, sampling, ends, extra)

    def _source(self, source: Tensor | None, source_valid: Tensor | None) -> dict[str, Any]:
        if isinstance(self.config.trunk, EncoderDecoder):
            if source is None:
                raise WeftError("an encoder-decoder writes a target for a source; give source=...")
            return {"source": source, "source_valid": source_valid}
        if source is not None or source_valid is not None:
            raise WeftError(
                f"only an encoder-decoder reads a source; the trunk is {type(self.config.trunk)}"
            )
        return {}

    def _check_causal(self) -> None:
        if isinstance(self.config.trunk, Encoder):
            raise Unsupported(
                "an encoder reads both ways, so it cannot decode step by step; "
                "build the language model on a Decoder or an EncoderDecoder"
            )
