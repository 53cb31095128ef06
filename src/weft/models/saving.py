"""Models on disk: a folder with `config.json` and `model.safetensors`; no pickle is ever read.

A trained model has `usage.json` beside them, with its labels and text settings, and
`tokenizer.json` where it has one (`models/usage/record.py`).

The folder is written beside its place under a temporary name and then renamed, so a reader finds
the old model or the new one, never half of one. Parameters that several layers share are written
once. A file that does not fit its config, or a config that this version does not know, is refused
with the names that differ. `modules` in `config.json` names the modules outside weft that define
parts of the model (`plugins.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from weft import __version__
from weft.config import read, write
from weft.errors import WeftError
from weft.files import parse_json, read_object, read_text, replacing_folder
from weft.models.registry import ModelConfig
from weft.models.usage.record import TOKENIZER, USAGE, check_labels, read_usage, write_usage
from weft.plugins import load_plugins, modules_of, way_out

FORMAT = 2  # 1: weft 0.1.0
_FILES = {"config.json", "model.safetensors"}
_FURTHER = {USAGE, TOKENIZER}  # of trained models
# Settings of format 1 that have other names now; `heads` by layer stood in a stack.
_RENAMED = {"bumps": "rbf_levels", "numbers": "layer_numbers"}


def save(model: nn.Module, path: str | Path) -> Path:
    """Write the model's config and parameters to the folder `path`; replaces a saved model."""
    path = Path(path)
    with replacing_folder(path, _FILES | _FURTHER, "a saved model") as new:
        config = {"format": FORMAT, "weft": __version__, "model": config_to_dict(model.config)}
        if modules := modules_of(model.config):
            config["modules"] = modules
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        if (usage := getattr(model, "usage", None)) is not None:
            write_usage(usage, new)
        tensors = {name: t.detach().contiguous() for name, t in _tensors(model).items()}
        write_tensors(tensors, new / "model.safetensors")
    return path


def write_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """A safetensors file; what the system refuses is said in words."""
    try:
        save_file(tensors, path)
    except SafetensorError as cause:
        raise WeftError(
            f"{path} cannot be written: {cause}; is the disk full? Make room and run the same "
            "command again: a training goes on from its last checkpoint"
        ) from cause


def load(
    path: str | Path, device: str | torch.device = "cpu", *, plugins: Sequence[str] = ()
) -> nn.Module:
    """The model that `save` wrote, in the precision it had, ready to evaluate (`eval` mode).

    `path` is a saved model, or the folder of a training or a cell, whose chosen weights are taken.
    A trained classifier, matcher or regression then has `predict(texts)`.

    `plugins` names modules that register parts of it. Those that the file names are not imported
    by themselves: a file of others must not choose the code that runs here.
    """
    load_plugins(plugins)
    path = model_folder(path)
    for name in sorted(_FILES):
        if not (path / name).is_file():
            raise WeftError(f"{path} is not a saved model: it has no {name}")
    config = _config(path / "config.json")
    _check_header(path, config)
    model = config.build()
    with _read_errors(path):
        found = load_file(path / "model.safetensors")
    known = _tensors(model)
    _check_same(path, known, {name: tuple(tensor.shape) for name, tensor in found.items()})
    for name, tensor in known.items():
        # A copy: the file stays free to change, and memory is aligned as torch aligns it.
        tensor.data = found[name].clone()
    if (usage := read_usage(path)) is not None:
        check_labels(usage, model.config, path)
        model.usage = usage
    return model.to(device).eval()


def model_folder(run: str | Path) -> Path:
    """Where the model of a run lies; a saved model lies where it is."""
    run = Path(run)
    if (run / "config.json").is_file():
        return run
    if not run.is_dir():
        raise WeftError(f"there is no folder {str(run)!r}; give a run or a saved model")
    chosen = "best"  # where it is still training, or stopped
    if (run / "done.json").is_file():
        chosen = read_object(run / "done.json", "model")["model"]
        if chosen not in ("best", "last"):  # nothing outside of the run
            raise WeftError(f"{run / 'done.json'}: model is 'best' or 'last'; got {chosen!r}")
    if not (run / chosen).is_dir():
        if (run / "experiment.json").is_file():
            raise WeftError(
                f"the training in {run} has no model yet: it has not come to its first evaluation. "
                "The command that began it goes on where it stopped"
            )
        if cells := sorted(run.glob("cells/*/best")):
            named = ", ".join(str(cell.parent) for cell in cells[:3])
            more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
            raise WeftError(
                f"{run} is a comparison; each of its trainings has a model: {named}{more}; "
                "its report says which is best"
            )
        raise WeftError(
            f"{run} is not a saved model: it has no config.json; nor is it a run that has "
            "saved one yet (best/)"
        )
    return run / chosen


def config_to_dict(config: Any) -> dict[str, Any]:
    """A model's config as plain JSON values; `config_from_dict` reads it back."""
    return write(config)


def config_from_dict(settings: Any) -> Any:
    """The config of a model that `config_to_dict` wrote, in this version or an older one."""
    return read(ModelConfig, _upgraded(settings), "model")


def _config(path: Path) -> Any:
    """The config in a saved model's `config.json`."""
    settings = parse_json(read_text(path), path)
    found = settings.get("format") if isinstance(settings, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise WeftError(
            f"{path} was written by weft {settings.get('weft', 'of a later version')} in format "
            f"{found}; this is weft {__version__}, which reads formats up to {FORMAT}: upgrade weft"
        )
    if found not in range(1, FORMAT + 1):
        raise WeftError(
            f"{path} is not the config of a saved model: its format is {found!r}, and this version "
            f"reads 1 to {FORMAT}"
        )
    try:
        return config_from_dict(settings.get("model"))
    except WeftError as error:
        raise WeftError(
            f"{error}{way_out(settings.get('modules', []), str(path.parent))}"
        ) from error


def _upgraded(settings: Any) -> Any:
    """The settings under the names that they have now."""
    if isinstance(settings, list):
        return [_upgraded(inner) for inner in settings]
    if not isinstance(settings, dict):
        return settings
    renamed = _RENAMED | ({"heads": "layer_heads"} if "order" in settings else {})
    return {renamed.get(key, key): _upgraded(value) for key, value in settings.items()}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, each tensor once, under its first name."""
    names: dict[Tensor, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(tensor, name)
    return {name: tensor for tensor, name in names.items()}


def _check_header(path: Path, config: Any) -> None:
    """Refuse weights of other shapes than the config says, before memory is taken for either."""
    with _read_errors(path), safe_open(path / "model.safetensors", framework="pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    try:
        with torch.device("meta"):
            planned = config.build()
    except RuntimeError as cause:
        if "meta" in str(cause):  # a part of another's that reads values it draws
            return  # the built model is compared
        raise WeftError(f"{path / 'config.json'} describes no model: {cause}") from cause
    _check_same(path, _tensors(planned), found)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as cause:
        raise WeftError(
            f"{path / 'model.safetensors'} cannot be read, is it cut short? {cause}"
        ) from cause


def _check_same(path: Path, known: dict[str, Tensor], found: dict[str, tuple[int, ...]]) -> None:
    missing, extra = sorted(known.keys() - found.keys()), sorted(found.keys() - known.keys())
    if missing or extra:
        raise WeftError(
            f"{path} does not fit its config: missing {_few(missing)}, unknown {_few(extra)}"
        )
    for name, tensor in known.items():
        if tensor.shape != found[name]:
            raise WeftError(
                f"{path}: {name} is {tuple(tensor.shape)} by the config, "
                f"but {found[name]} in the file"
            )


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
