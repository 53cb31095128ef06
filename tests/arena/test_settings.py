"""Settings files: what is written is read back; what does not fit is refused."""

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.arena.model import ModelSetting
from weft.arena.settings import (
    Experiment,
    experiment,
    read_experiment,
    read_settings,
    recipe,
    recipes,
    with_changes,
    write_experiment,
)
from weft.arena.tables import to_toml
from weft.errors import WeftError
from weft.training.curriculum import Phase
from weft.training.settings import Settings

FILE = """
mixer = "longformer(window=129)"

[task]
spec = "listops(length=512)"

[model]
layers = 2
positions = "rope"

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
    assert found.mixer == "longformer(window=129)"
    assert found.task == "listops(length=512)"
    assert found.model == ModelSetting(layers=2, positions="rope")
    assert found.training == Settings(steps=500, lr=1.0, betas=(0.9, 0.95), clip=None)
    assert isinstance(found.training.lr, float)
    assert found.phases == (
        Phase(steps=100, objective="masked_lm(rate=0.1)"),
        Phase(steps=400, mixer={"window": 65}),
    )


def test_contenders_differ_from_the_file_where_they_say_so(path):
    found = read_settings(path)
    assert list(found.mixers) == ["full", "few"]
    assert found.mixers["full"] == replace(found.experiment, mixer="full")
    few = found.mixers["few"]
    assert few.mixer == "bigbird(block=16)"
    assert few.model == replace(found.experiment.model, heads=1)
    assert few.training == replace(found.experiment.training, lr=5e-4)


def test_changes_win_over_the_file(path):
    changes = ["training.steps=7", "model.positions=none", "mixer=linear_transformer(eps=0.1)"]
    found = read_settings(path, [*changes, "task=listops", "training.clip=0.5"]).experiment
    assert (found.training.steps, found.training.clip) == (7, 0.5)
    assert (found.model.positions, found.model.layers) == ("none", 2)
    assert (found.mixer, found.task) == ("linear_transformer(eps=0.1)", "listops")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.layer=3", "[model] has no setting 'layer'; did you mean 'layers'"),
        ("training.step=3", "[training] has no setting 'step'; did you mean 'steps'"),
        ("modle.layers=3", "settings have no 'modle'; did you mean 'model'"),
        ("training.steps=many", "training.steps is a whole number; got 'many'"),
        ("training.steps=1.5", "training.steps is a whole number; got 1.5"),
        ("training.steps=true", "training.steps is a whole number; got True"),
        ("training.compile=1", "training.compile is true or false; got 1"),
        ("training.clip=often", "training.clip is a number or 'none'; got 'often'"),
        ("training.schedule=cosin", "training.schedule is one of 'constant', 'rsqrt'"),
        ("training.betas=0.9", "training.betas is a list; got 0.9"),
        ("training.lr=-1", "lr is positive; got lr=-1"),
        ("mixer=longformr", "did you mean 'longformer'"),
        ("mixer.window=3", "'mixer' holds 'longformer(window=129)'"),
        ("model.positions=ropes", "did you mean 'rope'"),
        ("mixers.few.model.head=3", "[mixers.few.model] has no setting 'head'; did you mean"),
        ("mixers.few.modl=3", "[mixers.few] has no setting 'modl'; did you mean 'model'"),
        ("task.specs=listops", "[task] has the setting 'spec' alone"),
        ("task=3", "settings need a task"),
        ("phase=3", "phases are written [[phase]]"),
        ("training", "section.setting=value; got 'training'"),
    ],
)
def test_what_does_not_fit_is_refused(path, change, message):
    with pytest.raises(WeftError) as caught:
        read_settings(path, [change])
    assert message in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(WeftError, match="cannot read the settings"):
        read_settings(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[task\n")
    with pytest.raises(WeftError, match="is no TOML"):
        read_settings(tmp_path / "broken.toml")
    with pytest.raises(WeftError, match="no recipe named 'demos'; did you mean 'demo'"):
        read_settings("demos")


@pytest.mark.parametrize("name", recipes())
def test_every_recipe_is_whole(name):
    """Every contender's model can be described, its trunk built from the settings alone."""
    found = read_settings(name)
    assert found.experiment.task
    for one in [found.experiment, *found.mixers.values()]:
        assert experiment(one.tables()) == one


def test_an_experiment_is_read_back(path, tmp_path):
    one = read_settings(path).experiment
    assert experiment(one.tables()) == one
    write_experiment(tmp_path / "run", one)
    assert read_experiment(tmp_path / "run") == one
    write_experiment(tmp_path / "run", Experiment(task="text"))
    assert read_experiment(tmp_path / "run") == one, "the first settings stay"
    with pytest.raises(WeftError, match=r"neither settings.toml .* nor job.json"):
        read_experiment(tmp_path / "elsewhere")


plain = st.one_of(
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(max_size=20),
    st.lists(st.integers(0, 9), max_size=3),
)
tables = st.dictionaries(st.text(min_size=1, max_size=8), plain, max_size=4)


@given(tables, st.lists(tables.filter(bool), max_size=3))
def test_any_table_survives_toml(table, rows):
    written = {"top": 1, "section": table}
    if rows:
        written["phase"] = rows
    assert tomllib.loads(to_toml(written)) == written


def test_none_is_a_word_in_toml():
    assert tomllib.loads(to_toml({"a": {"b": None}})) == {"a": {"b": "none"}}


def test_changes_leave_the_tables_as_they_were():
    before = {"task": {"spec": "listops"}}
    assert with_changes(before, ["task.spec=text"]) == {"task": {"spec": "text"}}
    assert before == {"task": {"spec": "listops"}}


def test_a_recipe_without_contenders_has_none():
    assert recipe({"task": "listops"}).mixers == {}
