"""Language models: scores over the vocabulary at every position.

    scores = output(trunk(ids))

On a Decoder it predicts the next token and generates; on an Encoder it fills in masked tokens; on
an EncoderDecoder it writes a target for a source. The output is a config of `weft.layers.outputs`:
plain, factorised, adaptive, a mixture. `tied` lets it share the tables of the (decoder's)
embedding; EncoderDecoder(shares_embedding=True) lets the two inputs share theirs. So all can be
tied, the inputs only, the decoder's input and output only, or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from weft.errors import Unsupported, WeftError
from weft.generate import Decoding
from weft.layers.marks import Marks
from weft.layers.outputs import Linear, OutputConfig, TokenLoss
from weft.models.registry import LAST, MODELS, TrunkModel
from weft.models.trunks.decoder import Decoder, DecoderState
from weft.models.trunks.encoder import Encoder
from weft.models.trunks.encoder_decoder import EncoderDecoder
from weft.models.trunks.perceiver_io import PerceiverIO
from weft.models.usage.predict import Predicts


@MODELS.register("language_model")
@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A trunk over tokens and the scores of the next, or the missing, token."""

    trunk: Encoder | Decoder | EncoderDecoder | PerceiverIO
    tied: bool = True  # scores use the table of the embedding
    output: OutputConfig = field(default_factory=Linear)
    mask_id: int | None = LAST  # of the mask token; None: it has none that is known

    def __post_init__(self) -> None:
        if isinstance(self.trunk, PerceiverIO) and self.trunk.outputs is not None:
            raise WeftError(
                "a language model scores every token, so a perceiver has no outputs of its own; "
                f"got outputs={self.trunk.outputs}: leave it out"
            )
        if self.trunk.embedding.vocab is None:
            raise WeftError(
                "a language model scores tokens, so its embedding has a vocab; "
                f"got channels={self.trunk.embedding.channels}"
            )
        vocab = self.trunk.embedding.vocab
        if self.mask_id is not None and not LAST <= self.mask_id < vocab:
            raise WeftError(
                f"mask_id is one of the vocab={vocab} ids, {LAST} for the last of them, or None; "
                f"got mask_id={self.mask_id}"
            )
        self.output.check(self.trunk.embedding, self.tied)

    def build(self) -> LanguageModelModule:
        return LanguageModelModule(self)


class LanguageModelModule(Predicts, Decoding, TrunkModel):
    """Ids (b, n) -> scores (b, n, vocab)."""

    config: LanguageModel

    def __init__(self, config: LanguageModel) -> None:
        super().__init__()
        self.config = config
        self.trunk = config.trunk.build()
        tied = self.trunk.embedding if config.tied else None
        output = config.output.build(config.trunk.dim, self.last_id + 1, tied)
        # The name under which a plain output's own matrix is saved.
        own = isinstance(config.output, Linear) and not config.tied
        self.head = output.weight if own else None
        self.output = output

    def forward(
        self,
        ids: Tensor,
        *,
        valid: Tensor | None = None,
        attention_mask: Tensor | None = None,
        source: Tensor | None = None,
        source_valid: Tensor | None = None,
        targets: Tensor | None = None,
        chosen: Tensor | None = None,
        marks: Marks | None = None,
        source_marks: Marks | None = None,
    ) -> Tensor | TokenLoss:
        """Scores (b, n, vocab) before the softmax; a source (b, m) for an encoder-decoder.

        With targets (b, n): the loss of each token that is chosen (b, n), not the scores. `marks`
        (b, n) and `source_marks` (b, m) are what mixers of the trunk take.
        """
        given = {"valid": valid, "attention_mask": attention_mask, "marks": marks}
        given |= self._source(source, source_valid, source_marks)
        if targets is not None and self.shards is not None:
            return self.shards.loss(self, ids, targets, chosen, **given)
        hidden = self.trunk(ids, **given)  # (b, n, c)
        if targets is None:
            return self.scores(hidden)
        return self.output.loss(hidden, targets, chosen)

    @property
    def fused(self) -> bool:
        """Whether `forward(targets=...)` computes the loss cheaper than from the logits."""
        return self.config.output.fused or self.shards is not None

    @property
    def shards(self) -> Any:
        """What reads shards, where sequences are split over processes (weft.scale.context)."""
        return getattr(self.trunk, "shards", None)

    def scores(self, hidden: Tensor) -> Tensor:
        """What the trunk gave (..., c) -> (..., vocab)."""
        return self.output.scores(hidden)

    def start(
        self,
        batch: int = 1,
        *,
        source: Tensor | None = None,
        source_valid: Tensor | None = None,
        source_marks: Marks | None = None,
    ) -> DecoderState:
        """The state before the first token."""
        self._check_causal()
        return self.trunk.start(batch, **self._source(source, source_valid, source_marks))

    def step(
        self, ids: Tensor, state: DecoderState, *, marks: Marks | None = None
    ) -> tuple[Tensor, DecoderState]:
        """New ids (b, n) -> scores (b, n, vocab), and the next state; the old one is consumed.

        Marks are refused: see `Decoder`.
        """
        hidden, state = self.trunk.step(ids, state, marks=marks)
        return self.scores(hidden), state

    def state_size(self, tokens: int) -> int:
        """Numbers per batch row that the mixers' states hold after this many tokens."""
        self._check_causal()
        return self.trunk.state_size(tokens)

    def next_scores(self, ids: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """New ids (b, n) -> scores (b, vocab) after the last of them, and the next state."""
        hidden, state = self.trunk.step(ids, state)
        return self.scores(hidden[:, -1]), state

    def check_prompt(self, ids: Tensor, tokens: int) -> None:
        """Refuse ids outside the vocabulary, and more tokens than there are positions."""
        self._check_causal()
        self.trunk.embedding.check_ids(ids)
        self.trunk.embedding.check_length(tokens)

    def _source(
        self, source: Tensor | None, source_valid: Tensor | None, source_marks: Marks | None = None
    ) -> dict[str, Any]:
        if isinstance(self.config.trunk, EncoderDecoder):
            if source is None:
                raise WeftError("an encoder-decoder writes a target for a source; give source=...")
            return {"source": source, "source_valid": source_valid, "source_marks": source_marks}
        if source is not None or source_valid is not None or source_marks:
            raise WeftError(
                f"only an encoder-decoder reads a source; the trunk is {type(self.config.trunk)}"
            )
        return {}

    def _check_causal(self) -> None:
        if isinstance(self.config.trunk, Encoder | PerceiverIO):
            raise Unsupported(
                "an encoder reads both ways, so it cannot decode step by step; "
                "build the language model on a Decoder or an EncoderDecoder"
            )
