"""An encoder-decoder as Transformers has them: the encoder runs once, the decoder goes on."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from weft.errors import Unsupported, WeftError
from weft.interop.hf.citizen.models import WeftPreTrainedModel, owner_of, real_of
from weft.interop.hf.citizen.states import WeftCache


class SourceEncoder(nn.Module):
    """The encoder, as `generate` calls it."""

    main_input_name = "input_ids"
    model: Any

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.__dict__["model"] = model  # not a child: its parameters have names already

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **others: Any
    ) -> Any:
        """Source ids (b, m) -> what the decoder reads, (b, m, c)."""
        ids = self.model.known_ids(input_ids, others)
        encoded = self.model.weft.trunk.encode(ids, real_of(attention_mask))
        return BaseModelOutput(last_hidden_state=encoded)


class WeftForSeq2SeqLM(WeftPreTrainedModel, GenerationMixin):
    """A target for a source."""

    _kind = "ForSeq2SeqLM"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: WeftCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **others: Any,
    ) -> Any:
        """Source (b, m) and target ids (b, n) -> logits (b, n, vocab).

        `labels` (b, n), -100 where there are none, also give the decoder's ids: shifted by one.
        """
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        context = encoder_outputs[0]
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        ids, valid = self.known_ids(decoder_input_ids, others), real_of(decoder_attention_mask)
        read = {"context": context, "context_valid": real_of(attention_mask)}
        decoder = self.weft.trunk.decoder
        if past_key_values is None:
            hidden = decoder(ids, valid=valid, **read)
        else:
            past_key_values.check_owner(owner_of(self))
            past_key_values.start = lambda rows: decoder.start(
                len(rows), **{name: x if x is None else x[rows] for name, x in read.items()}
            )
            new = None if valid is None else valid[:, -ids.shape[1] :]
            new = None if new is None or bool(new.all()) else new
            hidden = past_key_values.read(ids, new, decoder.step)
        logits, cache = self.output_of(hidden), cast(Any, past_key_values)
        loss = None
        if labels is not None:
            count = others.get("num_items_in_batch")
            flat = logits.flatten(0, 1).float(), labels.flatten().to(logits.device)
            loss = F.cross_entropy(*flat, reduction="mean" if count is None else "sum")
            loss = loss if count is None else loss / count
        return Seq2SeqLMOutput(
            loss=self.with_penalties(loss),
            logits=logits,
            past_key_values=cache,
            encoder_last_hidden_state=context,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Each label after the ones before it, the start in front."""
        start, end = self.config.decoder_start_token_id, self.config.eos_token_id
        if start is None or end is None:
            raise WeftError("labels need decoder_start_token_id and eos_token_id in the config")
        return F.pad(labels[:, :-1], (1, 0), value=start).masked_fill_(
            F.pad(labels[:, :-1] == -100, (1, 0)), end
        )

    def get_encoder(self, modality: Any = None) -> Any:
        """The encoder."""
        return SourceEncoder(self)

    def get_decoder(self) -> Any:
        """The decoder's module."""
        return self.weft.trunk.decoder

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *given: Any, **named: Any
    ) -> None:
        if generation_config.cache_implementation is not None:
            raise Unsupported("a weft model keeps its own state; leave out cache_implementation")
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = WeftCache(_not_started, owner_of(self))


def _not_started(rows: Tensor) -> Any:
    raise WeftError(f"a decoder of {torch.Size(rows.shape)} rows starts once its source is encoded")
