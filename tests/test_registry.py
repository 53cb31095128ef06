"""Names to configs: registering, finding, suggesting, and the three forms of one thing."""

import dataclasses
import json
from dataclasses import dataclass, field

import pytest

from weft.arena.tasks import TASKS
from weft.config import write
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS
from weft.layers.outputs import OUTPUTS
from weft.layers.projections.dense import PROJECTIONS
from weft.mixers import MIXERS
from weft.objectives import OBJECTIVES
from weft.registry import Registry, suggest


@pytest.fixture
def registry():
    registry = Registry("mixer")

    @registry.register("longformer")
    @dataclass(frozen=True, kw_only=True)
    class Longformer:
        window: int = 512
        dilation: float = 1.0
        sizes: tuple[int, ...] = ()
        inner: object = None

    @registry.register("full")
    @dataclass(frozen=True, kw_only=True)
    class Full:
        scale: float | None = None
        derived: int = field(init=False, default=3)

    return registry


def test_the_three_forms_are_one(registry):
    config = registry["longformer"](window=64)
    assert str(config) == "longformer(window=64)"
    assert write(config) == {
        "name": "longformer",
        "window": 64,
        "dilation": 1.0,
        "sizes": [],
        "inner": None,
    }
    assert registry.parse("longformer(window=64)") == config
    assert registry.read({"name": "longformer", "window": 64}) == config


def test_nested_configs_and_tuples_survive_json(registry):
    inner = registry["longformer"](window=4, sizes=(1, 2))
    config = registry["longformer"](inner=inner, sizes=(3,))
    text = json.dumps(write(config))
    assert registry.read(json.loads(text)) == config
    assert registry.parse(str(config)) == config
    assert str(config) == ("longformer(sizes=[3], inner=longformer(window=4, sizes=[1, 2]))")


def test_a_config_of_defaults_is_its_name(registry):
    assert str(registry["full"]()) == "full"
    assert registry["full"].name == "full"


def test_parses_lists(registry):
    configs = registry.parse_list("full, longformer(window=8, sizes=[1, 2])")
    assert configs == [registry["full"](), registry["longformer"](window=8, sizes=(1, 2))]


def test_behaves_like_a_collection(registry):
    assert list(registry) == ["full", "longformer"], "names come sorted"
    assert len(registry) == 2
    assert "full" in registry
    assert "empty" not in registry


def test_a_near_miss_suggests(registry):
    with pytest.raises(WeftError, match="no mixer named 'longfomer'; did you mean 'longformer'"):
        registry["longfomer"]
    with pytest.raises(WeftError, match="did you mean 'longformer'"):
        registry.parse("longfromer(window=3)")


def test_a_far_miss_lists_what_there_is(registry):
    with pytest.raises(WeftError, match="no mixer named 'xyz'; known: full, longformer"):
        registry["xyz"]


@pytest.mark.parametrize(
    "read",
    [
        lambda registry: registry.parse("longformer(windw=3)"),
        lambda registry: registry.read({"name": "longformer", "windw": 3}),
        lambda registry: registry.make("longformer", windw=3),
        lambda registry: registry["longformer"](windw=3),
        lambda registry: dataclasses.replace(registry["longformer"](), windw=3),
    ],
    ids=["spec", "table", "make", "class", "replace"],
)
def test_an_unknown_setting_suggests(registry, read):
    with pytest.raises(WeftError, match="longformer has no setting 'windw'; did you mean 'window'"):
        read(registry)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("longformer(window=abc)", "longformer.window is a whole number; got abc"),
        ("longformer(window=none)", "longformer.window is a whole number; got None"),
        ("longformer(window=2.5)", "longformer.window is a whole number; got 2.5"),
        ("longformer(window=true)", "longformer.window is a whole number; got True"),
        ("longformer(sizes=[1, 'a'])", r"longformer.sizes\[1\] is a whole number; got 'a'"),
        ("longformer(sizes=3)", "longformer.sizes is a list; got 3"),
        ("longformer(inner=longformer(window=a))", "longformer.inner.window is a whole number"),
        ("longformer(inner=fll)", "no mixer named 'fll'; did you mean 'full'"),
        ("5", "a mixer is a spec such as .*; got 5"),
        ("'full'", "a mixer is a spec such as .*; got 'full'"),
        ("full | full", "'|' does not apply to these values"),
        ("~full", "'~' does not apply to these values"),
        ("full | 3", "'|' does not apply to these values"),
    ],
)
def test_a_value_of_another_kind_is_refused(registry, text, message):
    with pytest.raises(WeftError, match=message.replace("|", r"\|")):
        registry.parse(text)


def test_a_config_of_another_family_is_refused(registry):
    other = Registry("pattern")

    @other.register("sliding")
    @dataclass(frozen=True)
    class Sliding:
        window: int

    assert other.parse("sliding(3)") == Sliding(3) == Sliding(window=3)
    with pytest.raises(WeftError, match=r"a mixer is a spec such as .* got .*Sliding"):
        registry.read(Sliding(3))
    with pytest.raises(WeftError, match="sliding has 'window' by place and by name"):
        other.parse("sliding(3, window=4)")
    with pytest.raises(WeftError, match="sliding needs window: give window="):
        other.parse("sliding")


def test_a_computed_field_is_no_setting(registry):
    with pytest.raises(WeftError, match="full has no setting 'derived'"):
        registry.make("full", derived=4)


def test_settings_go_by_name(registry):
    with pytest.raises(WeftError, match="by name: window, dilation, sizes, inner"):
        registry.parse("longformer(64)")


def test_a_dict_needs_a_name(registry):
    with pytest.raises(WeftError, match="a mixer needs a 'name'"):
        registry.read({"window": 3})


def test_names_are_unique(registry):
    with pytest.raises(WeftError, match="mixer 'full' is registered twice"):
        registry.register("full")(type("Other", (), {}))


def test_families_are_separate(registry):
    other = Registry("pattern")
    assert "full" not in other
    with pytest.raises(WeftError, match="no pattern named 'full'"):
        other["full"]


def test_configs_are_values(registry):
    config = registry["longformer"]()
    assert config == registry["longformer"](window=512)
    assert hash(config) == hash(registry["longformer"](window=512))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.window = 3


@pytest.mark.parametrize("family", [MIXERS, FEEDFORWARDS, OBJECTIVES, PROJECTIONS, OUTPUTS, TASKS])
def test_every_config_is_a_value_whose_settings_go_by_name(family):
    for kind in (family[name] for name in family if family[name].__module__.startswith("weft.")):
        assert kind.__dataclass_params__.frozen, kind
        assert all(each.kw_only for each in dataclasses.fields(kind) if each.init), kind


def test_errors_are_value_errors(registry):
    with pytest.raises(ValueError, match="no mixer named"):
        registry["nothing"]


def test_suggest_names_at_most_three():
    assert suggest("aaaa", ["aaab", "aaac", "aaad", "aaae"]).count(" or ") == 2
