"""The model classes: each holds a weft model, `model.weft`, and speaks Transformers' language.

WeftModel                        hidden states, for AutoModel
WeftForCausalLM                  AutoModelForCausalLM, with generate
WeftForMaskedLM                  AutoModelForMaskedLM
WeftForSequenceClassification    AutoModelForSequenceClassification
WeftForSeq2SeqLM                 AutoModelForSeq2SeqLM, with generate (`seq2seq.py`)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)

from weft.errors import Unsupported, WeftError
from weft.interop.hf.citizen.config import WeftConfig, kind_of, weft_config
from weft.interop.hf.citizen.states import WeftCache
from weft.layers.penalty import penalties
from weft.models.usage.mark_rules import marks_by, read_rules

_HARMLESS = {"return_dict", "num_items_in_batch", "cache_position", "use_cache"}


class WeftPreTrainedModel(PreTrainedModel):
    """What all share: the weft model, padding, marks, saving."""

    config_class = WeftConfig
    base_model_prefix = ""  # every class holds the whole model, so names agree between them
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False  # a stack's own: recompute in its config
    _kind = ""

    def __init__(self, config: WeftConfig, weft: nn.Module | None = None) -> None:
        super().__init__(config)
        own: Any = weft_config(config) if weft is None else weft.config
        if self._kind and kind_of(own) != self._kind:
            raise WeftError(
                f"this folder holds a weft {type(own).__name__}, which is Weft{kind_of(own)} here; "
                f"got {type(self).__name__}: take the Auto class of that name"
            )
        if weft is None:
            # Tables that are computed, not saved, would stay empty on the meta device.
            with torch.device("cpu"):
                weft = own.build()
        self.weft: Any = weft
        self.rules = read_rules(config.marks or {})
        self._tied_weights_keys = _tied(self)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """weft's modules draw their own weights when they are built."""

    def get_input_embeddings(self) -> Any:
        """The module that embeds tokens."""
        trunk = getattr(self.weft, "trunk", self.weft)
        return getattr(trunk, "embedding", None)

    def set_input_embeddings(self, value: Any) -> None:
        """Refused: the table is part of the embedding, and outputs may share it."""
        raise Unsupported("the vocabulary of a weft model is fixed; train one of another size")

    def resize_token_embeddings(self, *given: Any, **named: Any) -> Any:
        """Refused, as above."""
        return self.set_input_embeddings(None)

    def gradient_checkpointing_enable(self, *given: Any, **named: Any) -> None:
        """Refused: a stack says by itself what it computes again."""
        raise Unsupported("set recompute='checkpoint' in the weft model's stack instead")

    def known_ids(self, ids: Tensor | None, others: dict[str, Any]) -> Tensor:
        """The ids, with padding beyond the vocabulary as 0; what is not understood is refused."""
        for name, value in others.items():
            if name not in _HARMLESS and value is not None and value is not False:
                raise WeftError(
                    f"a weft model does not take {name}; it takes input_ids, attention_mask and "
                    "labels"
                )
        if ids is None:
            raise WeftError("a weft model reads input_ids; got none")
        pad, vocab = self.config.pad_token_id, self.config.vocab_size
        return ids if pad is None or pad < vocab else ids.masked_fill(ids == pad, 0)

    def marked(self, ids: Tensor, valid: Tensor | None) -> dict[str, Any]:
        """The keyword `marks` of these ids, where the model was trained with rules."""
        if not self.rules:
            return {}
        real = None if valid is None else valid.cpu()
        marks = marks_by(self.rules, ids.cpu(), real)
        return {"marks": {name: mark.to(ids.device) for name, mark in marks.items()}}

    def with_penalties(self, loss: Tensor | None) -> Any:
        """The loss, and in training what mixers and experts add to it."""
        if loss is None or not self.training:
            return loss
        extra = penalties(self.weft)
        return loss if extra is None else loss + extra

    def output_of(self, hidden: Tensor, keep: int | Tensor = 0) -> Any:
        """The scores of the last `keep` places, or of those at an index; 0: of all."""
        places = slice(-keep, None) if isinstance(keep, int) else keep
        return self.weft.scores(hidden[:, places])


class WeftModel(WeftPreTrainedModel):
    """The last hidden states."""

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **others: Any
    ) -> Any:
        """Ids (b, n) -> last_hidden_state (b, n, c), 0 at padding."""
        ids, valid = self.known_ids(input_ids, others), real_of(attention_mask)
        trunk = getattr(self.weft, "trunk", self.weft)
        hidden = trunk(ids, valid=valid, **self.marked(ids, valid))
        return BaseModelOutput(last_hidden_state=hidden)


class WeftForMaskedLM(WeftPreTrainedModel):
    """Scores of every token."""

    _kind = "ForMaskedLM"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Ids (b, n) -> logits (b, n, vocab), and the loss where labels are not -100."""
        ids, valid = self.known_ids(input_ids, others), real_of(attention_mask)
        logits = self.output_of(self.weft.trunk(ids, valid=valid, **self.marked(ids, valid)))
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=logits.shape[-1],
                num_items_in_batch=others.get("num_items_in_batch"),
            )
        return MaskedLMOutput(loss=self.with_penalties(loss), logits=logits)


class WeftForSequenceClassification(WeftPreTrainedModel):
    """Scores of the classes of a document, or the number of a regression."""

    _kind = "ForSequenceClassification"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **others: Any,
    ) -> Any:
        """Ids (b, n) -> logits (b, classes)."""
        ids, valid = self.known_ids(input_ids, others), real_of(attention_mask)
        logits = self.weft(ids, valid=valid, **self.marked(ids, valid))
        if self.config.problem_type == "regression":
            logits = self.config.answer_offset + self.config.answer_scale * logits
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=self.with_penalties(loss), logits=logits)


class WeftForCausalLM(WeftPreTrainedModel, GenerationMixin):
    """Scores of the next token; generates with weft's own decoding state."""

    _kind = "ForCausalLM"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: WeftCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **others: Any,
    ) -> Any:
        """Ids (b, n) -> logits (b, n, vocab); with a cache, of the ids after those it has read."""
        ids, valid = self.known_ids(input_ids, others), real_of(attention_mask)
        if use_cache and past_key_values is None:
            past_key_values = self.new_cache()
        if past_key_values is None:
            hidden = self.weft.trunk(ids, valid=valid, **self.marked(ids, valid))
        else:
            hidden = self._stepped(ids, valid, past_key_values)
        logits = self.output_of(hidden, logits_to_keep)
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=logits.shape[-1],
                num_items_in_batch=others.get("num_items_in_batch"),
            )
        return CausalLMOutputWithPast(
            loss=self.with_penalties(loss), logits=logits, past_key_values=past_key_values
        )

    def _stepped(self, ids: Tensor, valid: Tensor | None, cache: Any) -> Tensor:
        """The hidden states (b, n, c) of new ids, by the state of a cache."""
        if not isinstance(cache, WeftCache):
            raise WeftError(
                f"a weft model keeps its own state and not a {type(cache).__name__}; leave out "
                "past_key_values, or give model.new_cache()"
            )
        cache.check_owner(owner_of(self))
        if self.rules:
            raise Unsupported("a model with marks does not decode; call it with use_cache=False")
        valid = None if valid is None else valid[:, -ids.shape[1] :]
        return cache.read(ids, None if valid is None or bool(valid.all()) else valid, self._step)

    def _step(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self.weft.trunk.step(ids, state)

    def new_cache(self) -> WeftCache:
        """An empty state, for `past_key_values`."""
        return WeftCache(lambda rows: self.weft.trunk.start(len(rows)), owner_of(self))

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *given: Any, **named: Any
    ) -> None:
        """What `generate` begins with."""
        if generation_config.cache_implementation is not None:
            raise Unsupported(
                "a weft model keeps its own state; leave out cache_implementation, got "
                f"{generation_config.cache_implementation!r}"
            )
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = self.new_cache()


def real_of(attention_mask: Tensor | None) -> Tensor | None:
    """(b, n) booleans from a tokenizer's mask."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise WeftError(
            "attention_mask is (batch, length), 1 at real tokens; which token reads which is said "
            f"by the weft model's mixers; got {tuple(attention_mask.shape)}"
        )
    return attention_mask.to(torch.bool)


def owner_of(model: PreTrainedModel) -> str:
    """Which model a state belongs to."""
    return f"{type(model).__name__} {id(model)}"


def _tied(model: nn.Module) -> dict[str, str]:
    """Names of tensors that are another one too, and the name that one is saved under."""
    first: dict[Tensor, str] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor in first:
            tied[name] = first[tensor]
        else:
            first[tensor] = name
    return tied
