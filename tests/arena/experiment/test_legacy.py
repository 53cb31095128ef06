"""Settings and runs of weft 0.1.0 mean what they meant: `tests/fixtures/v0_1_0`."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rounding import as_fixtures
from weft.arena.ablation.ablate import read_ablation, resumed
from weft.arena.experiment.legacy import is_legacy
from weft.arena.experiment.runs import in_phase, model_of, objective_of, run_of
from weft.arena.experiment.settings import experiment, read_experiment, read_settings
from weft.arena.grid.compare import compare
from weft.arena.grid.grid import Grid, read_grid, with_dense, write_grid
from weft.arena.tasks import TASKS
from weft.errors import WeftError
from weft.feedforward.activations import width
from weft.models import config_from_dict, load
from weft.objectives import OBJECTIVES
from weft.rows import read
from weft.training import TrainingSettings, train
from weft.training.curriculum import Phase

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v0_1_0"
FILES = sorted(path.stem for path in (FIXTURES / "settings").glob("*.toml"))
# The machine and the settings that made them: there, results are equal bit by bit.
EXACT = as_fixtures()
RECIPES = [name.removeprefix("recipe_") for name in FILES if name.startswith("recipe_")]
RECIPES.remove("demo")  # another task since: passages of the standard library


def patched(old, change):
    """As tests/fixtures/v0_1_0/make_settings.py writes a change."""
    if "=" in change:
        return change["="]
    return {key: patched(old[key], change.get(key, {})) for key in old} if change else old


def expected(name):
    return json.loads((FIXTURES / "settings" / f"{name}.expected.json").read_text())


def widths(value, dim=None):
    """The config with the hidden units of feed-forwards as numbers."""
    if isinstance(value, tuple):
        return tuple(widths(each, dim) for each in value)
    if not dataclasses.is_dataclass(value):
        return value
    if hasattr(value, "expansion") and hasattr(value, "hidden"):
        return dataclasses.replace(
            value, expansion=1, hidden=width(value.expansion, value.hidden, dim)
        )
    dim = value.frame.dim if hasattr(value, "frame") else dim
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    return dataclasses.replace(value, **{n: widths(getattr(value, n), dim) for n in fields})


def check(found, base, own=None):
    """An experiment against what 0.1.0 said: `own` holds what differs from the base."""
    own = base if own is None else own
    assert found.task == TASKS.parse(own["task"])
    change = own.get("model_change", {})
    assert widths(model_of(found)) == widths(config_from_dict(patched(base["model"], change)))
    assert found.training == TrainingSettings(**{**base["training"], **own["training"]})
    objective = OBJECTIVES.parse(own["objective"]) if own["objective"] else None
    assert found.objective == objective
    assert experiment(json.loads(json.dumps(found.tables()))) == found


def check_file(source, wanted):
    recipe, base = read_settings(source), wanted["experiment"]
    check(recipe.experiment, base)
    assert list(recipe.mixers) == list(wanted.get("contenders", {}))
    for label, own in wanted.get("contenders", {}).items():
        check(recipe.mixers[label], base, own)
    if "modifications" in wanted:
        found = read_ablation(source).modifications
        assert [own.name for own in found] == list(wanted["modifications"])
        for own in found:
            check(own.experiment, base, wanted["modifications"][own.name])
    one = recipe.experiment
    for phase, stage in zip(one.phase or (Phase(),), wanted["stages"], strict=True):
        inside = in_phase(one, phase)
        model = config_from_dict(patched(base["model"], stage["model_change"]))
        assert widths(model_of(inside)) == widths(model)
        assert inside.task == TASKS.parse(stage["task"])
        assert objective_of(inside) == OBJECTIVES.parse(stage["objective_spec"])
        settings = phase.over(one.training) if one.phase else one.training
        assert settings == TrainingSettings(**{**base["training"], **stage["settings"]})
    return recipe


@pytest.mark.parametrize("name", FILES)
def test_files_of_0_1_0_mean_what_they_meant(name):
    wanted = expected(name)
    recipe = check_file(FIXTURES / "settings" / f"{name}.toml", wanted)
    if "cells" in wanted:
        every = with_dense(recipe.mixers, recipe.experiment, unfused=True)
        cells = Grid(contenders=every, seeds=(0, 1)).cells()
        assert [[c.label, c.length, c.seed, c.name] for c in cells] == wanted["cells"]
    for own in (
        read_ablation(FIXTURES / "settings" / f"{name}.toml").modifications
        if ("modifications" in wanted)
        else ()
    ):
        assert own.change == wanted["modifications"][own.name]["change"]


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_of_today_are_those_of_0_1_0(name):
    check_file(name, expected(f"recipe_{name}"))


def test_changes_of_an_old_file_are_in_its_words():
    wanted = expected("mixers")["changed"]
    one = read_settings(FIXTURES / "settings" / "mixers.toml", wanted["changes"]).experiment
    check(one, wanted)
    # A file without words of its own time is read as one of today.
    assert not is_legacy({"task": "reversal"})
    with pytest.raises(WeftError, match="may be one of several settings"):
        read_settings(FIXTURES / "settings" / "smallest.toml", ["model.positions=rope"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.layers=many", "model.layers is a whole number; got 'many'"),
        ("model.hidden=0", "hidden is at least 1; got hidden=0"),
        ("model.dim=true", "model.dim is a whole number; got True"),
        ("model.layrs=3", "model has no setting 'layrs'; did you mean 'layers'"),
        ("model.feedforward=swich", "no feed-forward named 'swich'; did you mean 'switch'"),
        ("model.positions=ropes", "no position scheme named 'ropes'"),
        ("model=3", "model is a table; got 3"),
        ("task.specs=listops", "[task] of weft 0.1 has the setting 'spec' alone"),
    ],
)
def test_old_files_that_do_not_fit_are_refused(change, message):
    with pytest.raises(WeftError) as caught:
        read_settings(FIXTURES / "settings" / "model_classify.toml", [change])
    assert message in str(caught.value)


def test_specs_and_presets():
    from weft.models import preset

    specs = json.loads((FIXTURES / "specs.json").read_text())
    from weft.feedforward import FEEDFORWARDS
    from weft.layers.outputs import OUTPUTS
    from weft.layers.positions import POSITIONS
    from weft.layers.projections.dense import PROJECTIONS
    from weft.mixers import MIXERS
    from weft.models import DEPTHS, RESIDUALS

    families = {
        "mixer": MIXERS, "feedforward": FEEDFORWARDS, "positions": POSITIONS, "output": OUTPUTS,
        "projection": PROJECTIONS, "depth": DEPTHS, "residual": RESIDUALS, "objective": OBJECTIVES,
    }  # fmt: skip
    assert set(specs) == set(families)
    for name, rows in specs.items():
        for row in rows:
            own = families[name].parse(row["spec"])
            assert own == families[name].parse(row["written"]) == families[name].read(row["dict"])
            assert families[name].parse(str(own)) == own
    for name, config in json.loads((FIXTURES / "presets.json").read_text()).items():
        if "(" not in name:
            assert preset(name) == config_from_dict(config)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))

    def copy(name):
        return Path(shutil.copytree(FIXTURES / "runs" / name, tmp_path / name))

    return copy


def weights(folder):
    return {
        f"{kind}.{name}": tensor
        for kind in ("best", "last")
        for name, tensor in load_file(folder / kind / "model.safetensors").items()
    }


def same(found, wanted, exact=True):
    """Bit by bit where it was made, to rounding on other processors."""
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    if EXACT and exact:
        assert not [name for name, tensor in wanted.items() if not torch.equal(found[name], tensor)]


def test_a_finished_run_is_scored(copied):
    folder = copied("train")
    one = read_experiment(folder)
    assert [phase.name for phase in one.phase] == ["short", "whole"]
    assert train(run_of(one), folder).status == "done", "the same run, so nothing is left to do"
    assert load(folder / "best").config == model_of(in_phase(one, one.phase[-1]))


def test_an_interrupted_run_goes_on_to_the_same_end(copied):
    folder = copied("interrupted")
    assert train(run_of(read_experiment(folder)), folder).status == "done"
    wanted = load_file(FIXTURES / "runs" / "interrupted.expected.safetensors")
    # Its Performer sums exponentials in logarithms since, which rounds otherwise.
    same(weights(folder), wanted, exact=False)


def test_an_unfinished_comparison_goes_on(copied, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the cells: sums over threads round otherwise
    folder = copied("compare_unfinished")
    grid = read_grid(folder)
    write_grid(folder, grid)  # not refused: the settings are the same
    with pytest.raises(WeftError, match=r"other settings; .*span_samples"):
        write_grid(folder, dataclasses.replace(grid, span_samples=9))
    assert compare(grid, folder).finished
    wanted = json.loads((FIXTURES / "runs" / "compare_unfinished.expected.json").read_text())
    rows = {row["label"]: row for row in read(folder / "rows.jsonl")}
    assert rows.keys() == wanted.keys()
    for label, row in wanted.items():
        for key, value in row.items():
            close = value if isinstance(value, str) else pytest.approx(value, rel=1e-4)
            assert rows[label][key] == close, (label, key)
    tensors = {
        f"{cell.label}.{name}": tensor
        for cell in grid.cells()
        for name, tensor in weights(folder / "cells" / cell.name).items()
    }
    ends = load_file(FIXTURES / "runs" / "compare_unfinished.expected.safetensors")
    same({name: tensors[name] for name in ends}, ends)


def test_a_finished_ablation_is_read(copied):
    folder = copied("ablate")
    found = resumed(folder)
    assert [own.name for own in found.modifications] == ["base", "RMSNorm", "window, lower rate"]
    write_grid(folder, found.grid())


def test_files_of_a_later_version_are_refused(copied):
    for name, file, reader in (("compare", "grid", read_grid), ("ablate", "ablation", resumed)):
        folder = copied(name)
        path = folder / f"{file}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
        with pytest.raises(WeftError, match="is in format 3; this version reads 1 to 2"):
            reader(folder)
