"""What to choose for a model, found on the user's own text before any training.

`probe_rotary`: the loss by position under several rotary bases. `probe_layers`: which layers gain
most by reading far: in rounds, each layer gets the far pattern by itself and the best ones keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from weft.errors import WeftError
from weft.interop.hf.dense_to_long.form import form_of, set_form
from weft.interop.hf.dense_to_long.losses import TokenLosses, bins_of, in_bins, loss_by_position
from weft.interop.hf.plug.layers import Patterns

FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class BaseTrial(NamedTuple):
    """A rotary factor and the losses under it."""

    factor: float
    mean: float
    bins: dict[str, float]


class LayerTrial(NamedTuple):
    """A layer that was chosen to read far, and the loss with it and those before it."""

    layer: int
    loss: float


def probe_rotary(
    model: PreTrainedModel,
    rows: Tensor,
    losses: TokenLosses,
    patterns: Patterns,
    factors: Sequence[float] = FACTORS,
    show: Callable[[BaseTrial], None] | None = None,
) -> list[BaseTrial]:
    """Losses by position under each factor, for a model that is long already; best first."""
    form = form_of(model)
    if form is None:
        raise WeftError("rotary factors are tried on a model that was lengthened first")
    found = []
    for factor in factors:
        set_form(model, patterns, factor)
        by_place = loss_by_position(model, rows, losses)
        bins = in_bins(by_place, bins_of(rows.shape[1], form.trained))
        trial = BaseTrial(factor, float(by_place.nanmean()), bins)
        found.append(trial)
        if show is not None:
            show(trial)
        form_now = form_of(model)
        if factor > 1 and form_now is not None and form_now.rotary_factor == 1:
            break  # no layer reads farther than it was trained for: factors change nothing
    return sorted(found, key=lambda trial: trial.mean)


def probe_layers(
    model: PreTrainedModel,
    rows: Tensor,
    losses: TokenLosses,
    near: str,
    far: str,
    count: int,
    factor: float = 1.0,
    together: int = 1,
) -> Iterator[LayerTrial]:
    """The `count` layers that gain most by reading `far` where the others read `near`, in order.

    `together` layers are chosen in each round, the best of its trials: fewer rounds, and each
    layer's loss is the one without those chosen beside it.
    """
    config: Any = model.config.get_text_config()
    if not 1 <= count < config.num_hidden_layers:
        raise WeftError(
            f"of {config.num_hidden_layers} layers some read far and some near; got {count} far"
        )
    chosen: list[int] = []
    while len(chosen) < count:
        trials: list[LayerTrial] = []
        for layer in range(config.num_hidden_layers):
            if layer in chosen:
                continue
            set_form(model, by_layer(near, far, [*chosen, layer]), factor)
            trials.append(LayerTrial(layer, float(loss_by_position(model, rows, losses).nanmean())))
        best = sorted(trials, key=lambda trial: trial.loss)[: min(together, count - len(chosen))]
        chosen += [trial.layer for trial in best]
        yield from best


def by_layer(near: str, far: str, layers: Sequence[int]) -> dict[str, str]:
    """Patterns by layer, as `use` takes them."""
    if not layers:
        return {"*": near}
    return {"*": near, ",".join(map(str, sorted(layers))): far}
