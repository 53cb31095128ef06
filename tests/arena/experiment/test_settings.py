"""Settings files: what is written is read back; what does not fit is refused with its place."""

import json
from dataclasses import replace

import pytest

from weft.arena.experiment.model import Model
from weft.arena.experiment.settings import (
    Experiment,
    experiment,
    modified,
    read_experiment,
    read_settings,
    recipe,
    recipes,
    tables_of,
    write_experiment,
)
from weft.arena.tasks import ListOps
from weft.config import changed
from weft.errors import WeftError
from weft.mixers import Longformer
from weft.objectives import MaskedLM
from weft.training.curriculum import Phase
from weft.training.settings import TrainingSettings

FILE = """
task = "listops(length=512)"
mixer = "longformer(window=129)"

[model]
layers = 2
dim = 64
embedding.positions = "none"
frame.positions = "rope"
activation = "relu"

[training]
steps = 500
lr = 1
betas = [0.9, 0.95]
clip = "none"

[[phase]]
steps = 100
objective = "masked_lm(rate=0.1)"

[[phase]]
steps = 400
mixer = {window = 65}

[mixers]
full = "full"
few = {mixer = "bigbird(block=16)", model = {heads = 1}, training = {lr = 5e-4}}
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "settings.toml").write_text(FILE)
    return tmp_path / "settings.toml"


def test_a_file_says_what_is_trained(path):
    found = read_settings(path).experiment
    assert found.task == ListOps(length=512)
    stack = found.model.trunk.stack
    assert (stack.order, stack.frame.dim, str(stack.frame.positions)) == ("sfsf", 64, "rope")
    assert stack.mixer == Longformer(window=129)
    assert found.mixer == "longformer(window=129)"
    assert stack.feedforward.activation == "relu"
    assert found.training == TrainingSettings(steps=500, lr=1.0, betas=(0.9, 0.95), clip=None)
    assert isinstance(found.training.lr, float)
    assert found.phase == (
        Phase(steps=100, objective=MaskedLM(rate=0.1)),
        Phase(steps=400, mixer={"window": 65}),
    )


def test_a_file_may_nest_the_configs_themselves(tmp_path):
    (tmp_path / "long.toml").write_text("""
[task]
name = "listops"
length = 512
[model.trunk.stack]
layers = 2
mixer = {name = "longformer", window = 129}
feedforward = {activation = "relu"}
[model.trunk.stack.frame]
dim = 64
positions = {name = "rope"}
[model.trunk.embedding]
positions = "none"
""")
    (tmp_path / "short.toml").write_text(FILE)
    long, short = (read_settings(tmp_path / f"{n}.toml").experiment for n in ("long", "short"))
    assert (long.task, long.model) == (short.task, short.model)


def test_contenders_differ_from_the_file_where_they_say_so(path):
    found = read_settings(path)
    assert list(found.mixers) == ["full", "few"]
    assert found.mixers["full"] == modified(found.experiment, {"mixer": "full"})
    few = found.mixers["few"]
    assert few.mixer == "bigbird(block=16)"
    assert few.model == changed(found.experiment.model, {"heads": 1, "mixer": "bigbird(block=16)"})
    assert few.training == replace(found.experiment.training, lr=5e-4)


def test_changes_win_over_the_file_however_it_says_them(path):
    changes = ["training.steps=7", "model.stack.frame.dim=32", "mixer=linear_transformer(eps=0.1)"]
    found = read_settings(path, [*changes, "task=listops", "training.clip=0.5"])
    one = found.experiment
    assert (one.training.steps, one.training.clip) == (7, 0.5)
    assert (one.model.trunk.stack.frame.dim, one.model.sizes()["layers"]) == (32, 2)
    assert (one.mixer, one.task) == ("linear_transformer(eps=0.1)", ListOps())
    assert found.mixers["few"].model.trunk.stack.frame.dim == 32
    assert read_settings(path, ["mixer.window=3"]).experiment.mixer == "longformer(window=3)"
    assert read_settings(path, ["task.length=64"]).experiment.task == ListOps(length=64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.layrs=3", "model has no setting 'layrs'; did you mean 'layers'"),
        ("model.stack.frame.head=3", "model.trunk.stack.frame has no setting 'head'; did you mean"),
        ("model.frame.heads=many", "model.trunk.stack.frame.heads is a whole number; got 'many'"),
        (
            "model.dropout=0.1",
            "model.dropout may be one of several settings: write trunk.stack.dropout or "
            "trunk.stack.frame.dropout",
        ),
        ("model.hidden=3", "write trunk.stack.feedforward.hidden or head.hidden"),
        ("model.heads=3", "model.trunk.stack.frame: dim is divided among the heads: dim=64"),
        ("model.head.pool=median", "model.head.pool is one of 'mean', 'max'"),
        ("model.head=3", "model.head is a Head (a table of classes, pool"),
        (
            "model.norm=rms",
            "model.trunk.stack.norm is a Norm (a table of kind, place",
        ),
        ("model.embedding.positions=rope", "positions is one of 'none', 'sinusoidal', 'learned'"),
        ("model.frame.positions=ropes", "model.trunk.stack.frame.positions: no position scheme"),
        ("model.trunk=classifier", "model.trunk: classifier needs trunk, classes"),
        ("model=3", "model is a Model (a table of trunk, head); got 3"),
        ("training.step=3", "training has no setting 'step'; did you mean 'steps'"),
        ("modle.layers=3", "settings have no 'modle'; did you mean 'model'"),
        ("training.steps=many", "training.steps is a whole number; got 'many'"),
        ("training.steps=1.5", "training.steps is a whole number; got 1.5"),
        ("training.steps=true", "training.steps is a whole number; got True"),
        ("training.compile=1", "training.compile is true or false; got 1"),
        ("training.clip=often", "training.clip is a number or 'none'; got 'often'"),
        ("training.schedule=cosin", "one of 'constant', 'rsqrt', 'cosine', 'linear'; got 'cosin'"),
        ("training.betas=0.9", "training.betas is a list of 2; got 0.9"),
        ("training.betas=[0.9]", "training.betas is a list of 2; got [0.9]"),
        ("training.lr=-1", "training: lr is positive; got lr=-1"),
        ("training=3", "training is a TrainingSettings"),
        (
            "mixer=longformr",
            "model.trunk.stack.mixer: no mixer named 'longformr'; did you mean 'lo",
        ),
        ("mixer=longformer(windw=3)", "model.trunk.stack.mixer: longformer has no setting 'windw'"),
        ("mixer.windw=3", "model.trunk.stack.mixer: longformer has no setting 'windw'"),
        ("mixer=5", "model.trunk.stack.mixer is a mixer"),
        ("mixers.few.model.head=3", "mixers.few.model.head is a Head"),
        ("mixers.few.model.hed=3", "mixers.few.model has no setting 'hed'; did you mean"),
        ("mixers.few.modl=3", "mixers.few has no setting 'modl'; did you mean 'model'"),
        ("mixers.few=3", "mixers.few is a mechanism or a table; got 3"),
        ("mixers=3", "[mixers] is a table of labels and mechanisms; got 3"),
        ("objective=masked", "objective: no objective named 'masked'; did you mean 'masked_lm'"),
        ("task.lenght=3", "task: listops has no setting 'lenght'; did you mean 'length'"),
        ("task.length=none", "task.length is a whole number; got 'none'"),
        ("task=listop", "task: no task named 'listop'; did you mean 'listops'"),
        ("task=3", "task is a task: "),
        ("phase=3", "phases are written [[phase]]"),
        ("unfused=3", "unfused is true or false; got 3"),
        ("training", "section.setting=value; got 'training'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(path, change, message):
    with pytest.raises(WeftError) as caught:
        read_settings(path, [change])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"step": 3}, "phase[0] has no setting 'step'; did you mean 'steps'"),
        ({"steps": "x"}, "phase[0].steps is a whole number or 'none'; got 'x'"),
        ({"schedule": "x"}, "phase[0].schedule is one of"),
        ({"mixer": "longfrmer"}, "phase[0].mixer: no mixer named 'longfrmer'"),
        ({"objective": "clasify"}, "phase[0].objective: no objective named 'clasify'"),
        ({"model": 3}, "phase[0].model is a table or 'none'; got 3"),
    ],
)
def test_phases_are_refused_with_their_number(phase, message):
    with pytest.raises(WeftError) as caught:
        experiment({"task": "listops", "phase": [phase]})
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(WeftError, match=r"cannot read .*none\.toml"):
        read_settings(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[task\n")
    with pytest.raises(WeftError, match="is not valid TOML"):
        read_settings(tmp_path / "broken.toml")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(WeftError, match="is not valid JSON"):
        read_settings(tmp_path / "broken.json")
    with pytest.raises(WeftError, match="no recipe named 'demos'; did you mean 'demo'"):
        read_settings("demos")
    with pytest.raises(WeftError, match="settings need a task"):
        experiment({})
    with pytest.raises(WeftError, match="settings are tables; got 3"):
        experiment(3)


def test_a_folder_does_not_hide_the_recipe_of_its_name(tmp_path, monkeypatch):
    """`weft compare --recipe demo --out demo` makes such a folder itself."""
    monkeypatch.chdir(tmp_path)
    whole = read_settings("demo")
    (tmp_path / "demo").mkdir()
    assert read_settings("demo") == whole
    (tmp_path / "mine").mkdir()
    with pytest.raises(WeftError, match="mine"):
        read_settings("mine")


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_read_back(name):
    found = read_settings(name)
    for one in [found.experiment, *found.mixers.values()]:
        assert experiment(json.loads(json.dumps(one.tables()))) == one


def test_an_experiment_is_read_back(path, tmp_path):
    one = read_settings(path).experiment
    write_experiment(tmp_path / "run", one)
    assert read_experiment(tmp_path / "run") == one
    assert read_settings(tmp_path / "run" / "experiment.json").experiment == one
    write_experiment(tmp_path / "run", Experiment(task="listops"))
    assert read_experiment(tmp_path / "run") == one, "the first settings stay"
    with pytest.raises(WeftError, match=r"neither experiment.json .* nor job.json"):
        read_experiment(tmp_path / "elsewhere")


def test_an_experiment_says_what_differs_alone():
    one = Experiment(task="listops(length=64)", model=changed(Model(), {"dim": 64}))
    assert one.tables() == {
        "task": {"name": "listops", "length": 64},
        "model": {"trunk": {"name": "encoder", "stack": {"frame": {"dim": 64}}}},
    }


def test_changes_become_tables():
    assert tables_of(["a.b=1", "a.c=x", "d=[1, 2]"]) == {"a": {"b": 1, "c": "x"}, "d": [1, 2]}


def test_a_recipe_without_contenders_has_none():
    assert recipe({"task": "listops"}).mixers == {}
