"""Models on disk: a folder with `config.json` and `model.safetensors`; no pickle is ever read.

The folder is written beside its place under a temporary name and then renamed, so a reader finds
the old model or the new one, never half of one. Parameters that several layers share are written
once. A file that does not fit its config, or a config that this version does not know, is refused
with the names that differ.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS
from weft.layers.embedding import Embedding
from weft.layers.norm import Norm
from weft.layers.outputs import OUTPUTS
from weft.layers.positions import POSITIONS
from weft.layers.projection import PROJECTIONS
from weft.mixers import MIXERS, Frame
from weft.models.depth import DEPTHS
from weft.models.registry import MODELS
from weft.models.residual import RESIDUALS
from weft.models.stack import Stack
from weft.registry import suggest, to_dict

FORMAT = 1
_FILES = {"config.json", "model.safetensors"}
# Which family or class the dict under each of these settings describes.
_FAMILIES = {
    "mixer": MIXERS,
    "cross": MIXERS,
    "feedforward": FEEDFORWARDS,
    "positions": POSITIONS,
    "projection": PROJECTIONS,
    "residual": RESIDUALS,
    "depth": DEPTHS,
    "output": OUTPUTS,
}
_PARTS = {"embedding": Embedding, "stack": Stack, "frame": Frame, "norm": Norm}
_MODELS = ("trunk", "encoder", "decoder")


def save(model: nn.Module, path: str | Path) -> Path:
    """Write the model's config and parameters to the folder `path`; replaces a saved model."""
    path = Path(path)
    if path.exists() and not (path.is_dir() and {f.name for f in path.iterdir()} <= _FILES):
        raise WeftError(
            f"{path} holds something other than a saved model, and saving would remove it; "
            "give a folder of the model's own"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, so that the rename stays within one file system.
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        new, old = scratch / "new", scratch / "old"
        new.mkdir()
        config = {"format": FORMAT, "model": config_to_dict(model.config)}
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        tensors = {name: t.detach().contiguous() for name, t in _tensors(model).items()}
        save_file(tensors, new / "model.safetensors")
        if path.exists():
            path.rename(old)
        new.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return path


def load(path: str | Path, device: str | torch.device = "cpu") -> nn.Module:
    """The model that `save` wrote, in the precision it had, ready to evaluate (`eval` mode)."""
    path = Path(path)
    for name in sorted(_FILES):
        if not (path / name).is_file():
            raise WeftError(f"{path} is no saved model: it has no {name}")
    try:
        settings = json.loads((path / "config.json").read_text())
    except ValueError as cause:
        raise WeftError(f"{path / 'config.json'} is no JSON: {cause}") from cause
    if not isinstance(settings, dict) or settings.get("format") != FORMAT:
        raise WeftError(
            f"{path / 'config.json'} is not in format {FORMAT}, which this version reads; "
            f"its keys are {sorted(settings)}"
        )
    model = config_from_dict(settings.get("model", {})).build()
    try:
        found = load_file(path / "model.safetensors")
    except SafetensorError as cause:
        raise WeftError(
            f"{path / 'model.safetensors'} cannot be read, is it cut short? {cause}"
        ) from cause
    known = _tensors(model)
    _check_same(path, known, found)
    for name, tensor in known.items():
        # A copy: the file stays free to change, and memory is aligned as torch aligns it.
        tensor.data = found[name].clone()
    return model.to(device).eval()


def config_to_dict(config: Any) -> dict[str, Any]:
    """A model's config as plain JSON values; `config_from_dict` reads it back."""
    plain: dict[str, Any] = {"name": config.name} if type(config) in _named() else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _FAMILIES and isinstance(value, tuple):
            plain[field.name] = [to_dict(item) for item in value]
        elif not dataclasses.is_dataclass(value):
            plain[field.name] = value
        else:
            write = to_dict if field.name in _FAMILIES else config_to_dict
            plain[field.name] = write(value)
    return plain


def config_from_dict(settings: dict[str, Any]) -> Any:
    """The config of a model that `config_to_dict` wrote; unknown settings raise."""
    if "name" not in settings:
        raise WeftError(f"a model's config needs a 'name'; got {sorted(settings)}")
    rest = {key: value for key, value in settings.items() if key != "name"}
    return _read(MODELS[settings["name"]], rest)


def _read(kind: type[Any], settings: dict[str, Any]) -> Any:
    known = {field.name: field for field in dataclasses.fields(kind)}
    for key in settings:
        if key not in known:
            raise WeftError(f"{kind.__name__} has no setting {key!r}; {suggest(key, known)}")
    for key, field in known.items():
        defaults = field.default, field.default_factory
        if key not in settings and all(d is dataclasses.MISSING for d in defaults):
            raise WeftError(f"{kind.__name__} needs the setting {key!r}; got {sorted(settings)}")
    return kind(**{key: _value(key, value) for key, value in settings.items()})


def _value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(key, item) for item in value)
    if not isinstance(value, dict):
        return value
    if key in _FAMILIES:
        return _FAMILIES[key].from_dict(value)
    return config_from_dict(value) if key in _MODELS else _read(_PARTS[key], value)


def _named() -> set[type[Any]]:
    return {MODELS[name] for name in MODELS}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each tensor once, under its first name."""
    names: dict[Tensor, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(tensor, name)
    return {name: tensor for tensor, name in names.items()}


def _check_same(path: Path, known: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    missing, extra = sorted(known.keys() - found.keys()), sorted(found.keys() - known.keys())
    if missing or extra:
        raise WeftError(
            f"{path} does not fit its config: missing {_few(missing)}, unknown {_few(extra)}"
        )
    for name, tensor in known.items():
        if tensor.shape != found[name].shape:
            raise WeftError(
                f"{path}: {name} is {tuple(tensor.shape)} by the config, "
                f"but {tuple(found[name].shape)} in the file"
            )


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
