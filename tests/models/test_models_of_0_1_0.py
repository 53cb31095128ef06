"""Models that weft 0.1.0 saved: loaded, they compute what they computed then."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rounding import as_fixtures
from weft.models import load, save

FOLDER = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "models"
NAMES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
# Where they were made, results are equal bit by bit.
EXACT = as_fixtures()


# Their sums of exponentials run in logarithms since, which rounds otherwise (CHANGELOG, Numerics).
ROUNDED = ("performer", "sinkhorn")


def same(found, wanted, name, exact):
    torch.testing.assert_close(
        found, wanted, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}"
    )
    assert not exact or torch.equal(found, wanted), name


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_0_1_0(name, tmp_path):
    found = load_file(FOLDER / f"{name}.expected.safetensors")
    args = [found[key] for key in sorted(found) if key.startswith("args.")]
    kwargs = {k.removeprefix("kwargs."): v for k, v in found.items() if k.startswith("kwargs.")}
    model = load(FOLDER / name)
    config = (FOLDER / name / "config.json").read_text()
    exact = EXACT and not any(f'"{mixer}"' in config for mixer in ROUNDED)
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    for each in (model, again):
        with torch.no_grad():
            same(each(*args, **kwargs), found["output"], "output", exact)
            for key in found:
                if key.startswith("call."):
                    method = getattr(each, key.removeprefix("call."))
                    same(method(*args, **kwargs), found[key], key, exact)
