"""The stages of a conversion; those that were done before a kill are read."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch

from weft.errors import WeftError
from weft.interop.hf.dense_to_long.findings import Findings
from weft.interop.hf.dense_to_long.form import (
    far_layers,
    form_of,
    is_decoder,
    lengthen,
    set_form,
)
from weft.interop.hf.dense_to_long.losses import TokenLosses, losses_for
from weft.interop.hf.dense_to_long.measure import Tensors, measured, short_length, stage
from weft.interop.hf.dense_to_long.probe import FACTORS, BaseTrial, probe_rotary
from weft.interop.hf.dense_to_long.rotary import has_rotary
from weft.interop.hf.dense_to_long.settings import Conversion, ConversionListener
from weft.interop.hf.dense_to_long.source import Original, read_original
from weft.interop.hf.dense_to_long.speed import prefill_cost
from weft.interop.hf.dense_to_long.text import Ends, TextRows, ends_of, held_rows, split_rows
from weft.interop.hf.dense_to_long.tiling import trained_length
from weft.interop.hf.dense_to_long.training import continue_training
from weft.interop.hf.plug.use import use

WORK = "work"  # folder of what a killed conversion goes on from


@dataclass
class ConversionRun:
    """One conversion, stage by stage."""

    source: Path
    out: Path
    settings: Conversion
    train: str | Path | None
    held_out: str | Path | None
    listener: ConversionListener

    @cached_property
    def original(self) -> Original:
        """The model, which is made long in place, and its tokenizer."""
        found = read_original(self.source, self.settings.head, getattr(torch, self.settings.dtype))
        _check_kind(found.model)
        cast(Any, found.model).to(self.settings.device)
        for name in found.left_out:
            self.listener.note(f"left out: {name}, which {type(found.model).__name__} has not")
        return found

    def findings(self) -> Findings:
        """Everything, in order; stages that were done are read."""
        settings, model = self.settings, self.original.model
        trained = trained_length(model)
        _check_form(model, settings, trained)
        text, losses = self._text(), None
        if text is not None:
            losses = self._losses()
        ends = Ends() if text is None else ends_of(self.original.tokenizer)
        short = short_length(trained, settings.length)
        curves: Tensors = {}
        before: Tensors = {}
        if text is not None:
            lengths = {"original, in chunks": trained}
            if is_decoder(model) and has_rotary(model):
                lengths["original, at once"] = settings.length
            before = self._measure("original", text, losses, ends, short, lengths)
        lengthen(model, settings.length, settings.pattern)
        trials = self._rotary(text, losses)
        whole = settings.length
        seen: dict[str, float] = {}
        after = before
        if text is not None:
            now = {"converted, before training": whole}
            after = self._measure("lengthened", text, losses, ends, short, now)
            curves |= {k: v for k, v in (before | after).items() if k != "short"}
        if self.train is not None:
            assert text is not None
            assert losses is not None
            seen = self._train(text, losses)
            now = {"converted, trained": whole}
            after = self._measure("trained", text, losses, ends, short, now)
            curves |= {k: v for k, v in after.items() if k != "short"}
        form = form_of(model)
        assert form is not None
        return Findings(
            source=self.source,
            settings=settings,
            form=form,
            kind=type(model).__name__,
            note="no text was given: nothing was measured but speed" if text is None else text.note,
            trials=trials,
            curves=curves,
            short=() if text is None else (before["short"], after["short"]),
            training=seen,
            cost=self._speed(text),
            command={"train": self.train, "held_out": self.held_out},
        )

    def _text(self) -> TextRows | None:
        if self.train is None and self.held_out is None:
            return None
        if self.original.tokenizer is None:
            raise WeftError(f"{self.source} has no tokenizer, so text cannot be read")

        def make() -> Tensors:
            settings = self.settings
            length, count = settings.length, settings.held_rows
            held_out = None if self.held_out is None else Path(self.held_out)
            tokenizer = self.original.tokenizer
            if self.train is None:
                assert held_out is not None
                found = held_rows(held_out, tokenizer, length, count)
            else:
                found = split_rows(
                    Path(self.train), held_out, tokenizer, length, count, settings.seed
                )
            _check_ids(found, tokenizer, self.original.model)
            note = torch.tensor(list(found.note.encode()), dtype=torch.uint8)
            return {"train": found.train, "held": found.held, "note": note}

        found = stage(self.out / WORK, "text", make)
        text = TextRows(found["train"], found["held"], bytes(found["note"].tolist()).decode())
        self.listener.note(text.note)
        return text

    def _losses(self) -> TokenLosses | None:
        """The model's own loss; None: it has no head, and nothing is trained."""
        model, tokenizer = self.original.model, self.original.tokenizer
        if self.train is None and not is_decoder(model) and "MaskedLM" not in type(model).__name__:
            self.listener.note(f"{type(model).__name__} has no loss: vectors alone are compared")
            return None
        return losses_for(model, tokenizer.mask_token_id, tuple(tokenizer.all_special_ids))

    def _measure(
        self,
        name: str,
        text: TextRows,
        losses: TokenLosses | None,
        ends: Ends,
        short: int,
        lengths: dict[str, int],
    ) -> Tensors:
        began = time.monotonic()
        model = self.original.model
        found = stage(
            self.out / WORK,
            name,
            lambda: measured(model, text.held, losses, ends, short, lengths),
        )
        for way in lengths:
            if way in found:
                self.listener.note(f"{way}: loss {float(found[way].nanmean()):.4f}")
        self.listener.note(f"measured in {time.monotonic() - began:.0f} s")
        return found

    def _rotary(self, text: TextRows | None, losses: TokenLosses | None) -> list[BaseTrial]:
        """Set the rotary factor of layers that read far; how it was chosen."""
        settings, model = self.settings, self.original.model
        form = form_of(model)
        assert form is not None
        far = far_layers(model, settings.pattern, form.trained, form.length)
        if not far or settings.rotary is not None:
            set_form(model, settings.pattern, settings.rotary or 1.0)
            return []
        layers = f"layers {', '.join(map(str, far))} read beyond the {form.trained:,} tokens"
        if text is None or losses is None:
            raise WeftError(
                f"{layers} that the model was trained for, so their rotary base has to grow; give "
                "text to choose by (--train or --held-out), or a factor (--rotary 8)"
            )
        rows = (text.train if len(text.train) else text.held)[: settings.probe_rows]
        self.listener.note(f"{layers}: rotary factors are tried on {len(rows)} rows")

        def make() -> Tensors:
            found = probe_rotary(model, rows, losses, settings.pattern, FACTORS, self._tried)
            return {"trials": torch.tensor(list(json.dumps(found).encode()), dtype=torch.uint8)}

        held = stage(self.out / WORK, "rotary", make)["trials"]
        trials = [BaseTrial(*one) for one in json.loads(bytes(held.tolist()))]
        set_form(model, settings.pattern, trials[0].factor)
        self.listener.note(f"rotary base × {trials[0].factor:g}")
        return trials

    def _tried(self, trial: BaseTrial) -> None:
        self.listener.note(f"rotary base × {trial.factor:g}: loss {trial.mean:.4f}")

    def _train(self, text: TextRows, losses: TokenLosses) -> dict[str, float]:
        given = {"form": asdict(self._form())}
        model, rows = self.original.model, text.train
        own = self.settings.training()
        return continue_training(
            model, rows, losses, own, self.out / WORK, self.listener.training, given
        )

    def _form(self) -> Any:
        return form_of(self.original.model)

    def _speed(self, text: TextRows | None) -> dict[str, dict[str, float]]:
        settings, model = self.settings, self.original.model
        if not settings.rounds:
            return {}
        if text is None:
            row = torch.randint(model.config.get_text_config().vocab_size, (1, settings.length))
        else:
            row = text.held[:1]
        self.listener.note(f"prefill of {settings.length:,} tokens is timed, dense and sparse")

        def make() -> Tensors:
            found = prefill_cost(model, row, settings.rounds)
            return {
                k: torch.tensor(list(v.values()), dtype=torch.float64) for k, v in found.items()
            }

        names = ("seconds", "peak_bytes", "state_bytes")
        found = stage(self.out / WORK, "speed", make)
        return {k: dict(zip(names, v.tolist(), strict=True)) for k, v in found.items()}


def _check_ids(text: TextRows, tokenizer: Any, model: Any) -> None:
    """Refuse a tokenizer of another model, and one that does not know the text."""
    vocab = model.config.get_text_config().vocab_size
    largest = max(int(rows.max()) for rows in (text.train, text.held) if len(rows))
    if largest >= vocab:
        raise WeftError(
            f"the tokenizer gives ids up to {largest}, and the model has {vocab} of them: they do "
            "not belong together"
        )
    unknown = tokenizer.unk_token_id
    if unknown is not None and (share := float((text.held == unknown).float().mean())) > 0.5:
        raise WeftError(
            f"the tokenizer does not know {share:.0%} of the text, so there is nothing to learn; "
            "give text of the kind that the model was trained on, or its own tokenizer"
        )


def _check_kind(model: Any) -> None:
    """Refuse the body of a decoder alone, which would not be known as one."""
    causal = any(
        getattr(part, "is_causal", False) is True and "Attention" in type(part).__name__
        for part in model.modules()
    )
    if causal and not is_decoder(model) and not model.config.is_encoder_decoder:
        raise WeftError(
            f"{type(model).__name__} is a decoder without its output layer; convert it with its "
            "head: --head CausalLM"
        )


def _check_form(model: Any, settings: Conversion, trained: int) -> None:
    """Before minutes of measuring: what would be refused afterwards."""
    if settings.length <= trained:
        raise WeftError(
            f"the model reads {trained:,} tokens already; --length is how long it becomes, so "
            f"more than that; got {settings.length:,}"
        )
    far_layers(model, settings.pattern, trained, settings.length)
    use(model, settings.pattern)
    use(model, None)
