"""The description of a native model, and its conversion back to torch.

`config.json` of a native model holds the torch model's config and, for each stored tensor, which
parameters it was made from and how. So the torch model with the same rounded weights can be
rebuilt: it is the fallback without a compiler, and the reference that the library is tested
against.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import WeftError
from weft.models.saving import config_from_dict
from weft.native import file
from weft.native.plan import NativePlan, StoredTensor

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Description:
    """Where the numbers of a model file come from."""

    model: dict[str, Any]  # the torch model's config
    vocab: int
    limit: int  # longest sequence; 0: any
    sublayers: int
    cache: str
    stored: tuple[StoredTensor, ...]

    @classmethod
    def of(cls, plan: NativePlan, model: dict[str, Any]) -> Description:
        """The description of a plan."""
        settings = plan.settings
        return cls(
            model=model,
            vocab=settings["vocab"],
            limit=settings["limit"],
            sublayers=len(plan.parts),
            cache=plan.precision.cache,
            stored=tuple(plan.stored),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"native": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def read(cls, path: Path) -> Description:
        """From `config.json`; raises WeftError where that is something else."""
        try:
            values = json.loads(path.read_text())
            if values.pop("native") != FORMAT:
                raise ValueError("another format")
            stored = [
                StoredTensor(
                    **row
                    | {
                        "sources": tuple(row["sources"]),
                        "shapes": tuple(map(tuple, row["shapes"])),
                    }
                )
                for row in values.pop("stored")
            ]
            return cls(stored=tuple(stored), **values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise WeftError(
                f"{path} does not describe a native model in format {FORMAT}: {error!r}"
            ) from None


def rebuilt(description: Description, buffer: Any, size: int) -> nn.Module:
    """The torch model with the weights of a model file, in float32 and `eval` mode."""
    places = file.FileOffsets(list(description.stored), description.sublayers)
    if places.end != size:
        raise WeftError(
            f"the model file has {size} bytes, its description asks for {places.end}; "
            "is it truncated?"
        )
    model = config_from_dict(description.model).build()
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = {name for name, _ in model.named_parameters()}
    with torch.no_grad():
        # What is embedded is stored before what is scored: a tied table keeps its own rounding.
        for number, tensor in enumerate(description.stored):
            values = file.read(buffer, places, number, tensor)
            for name, value in zip(tensor.sources, values, strict=True):
                if name in missing:
                    _check_shape(name, parameters[name], value)
                    parameters[name].copy_(value)
                    missing.discard(name)
    if missing:
        raise WeftError(f"the model file has no {', '.join(sorted(missing)[:5])}")
    return model.eval()


def _check_shape(name: str, parameter: Tensor, value: Tensor) -> None:
    if parameter.shape != value.shape:
        raise WeftError(
            f"config.json and model.weft belong to different models: {name} is "
            f"{tuple(parameter.shape)} in the one and {tuple(value.shape)} in the other; "
            "export the model again"
        )


_warned: set[str] = set()


def warn_slow(reason: str) -> None:
    """Warn once that decoding runs in torch."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"decoding in torch, slower than native: {reason}", stacklevel=4)
