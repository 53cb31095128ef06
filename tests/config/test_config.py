"""Configs by their hints: read, changed and written; refusals name the place."""

import json
import tomllib
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, Literal

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from weft.config import changed, config, read, write
from weft.errors import Unsupported, WeftError
from weft.registry import Registry

MIXERS, TRUNKS = Registry("mixer"), Registry("trunk")
MixerConfig = Annotated[Any, MIXERS]


@MIXERS.register("full")
@dataclass(frozen=True, kw_only=True)
class Full:
    scale: float | None = None


@MIXERS.register("window")
@dataclass(frozen=True, kw_only=True)
class Window:
    reach: int | tuple[int, ...] = 3
    kind: Literal["hard", "soft"] = "hard"
    note: str = ""
    inner: MixerConfig | None = None

    def __post_init__(self):
        if self.reach == 0:
            raise WeftError("reach is at least 1; got 0")
        if self.reach == 1:
            raise Unsupported("a reach of 1 reads nothing")


@config
class Frame:
    dim: int
    heads: int = 2
    head_dim: int | None = None  # None: dim / heads
    dropout: float = 0.0
    box: tuple[int, str] = (1, "a")

    derives = ("head_dim",)

    def __post_init__(self):
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", self.dim // self.heads)


@config
class Stack:
    frame: Frame = field(default_factory=lambda: Frame(dim=8))
    mixer: MixerConfig | tuple[MixerConfig, ...] = field(default_factory=Full)
    dropout: float = 0.0
    order: str = "sf"
    layers: InitVar[int | None] = None
    notes: dict[str, int] = field(default_factory=dict)

    def __post_init__(self, layers):
        if layers is not None:
            object.__setattr__(self, "order", "sf" * layers)


@TRUNKS.register("plain")
@dataclass(frozen=True, kw_only=True)
class Plain:
    stack: Stack = field(default_factory=Stack)


@TRUNKS.register("funnel")
@dataclass(frozen=True, kw_only=True)
class Funnel:
    stack: Stack
    blocks: int = 3


@TRUNKS.register("pair")
@dataclass(frozen=True, kw_only=True)
class Pair:
    left: Plain
    right: Plain | None = None  # None: as the left one, narrower

    derives = ("right",)

    def __post_init__(self):
        if self.right is None:
            object.__setattr__(
                self, "right", changed(self.left, {"stack": {"dropout": 0.5}, "heads": 1})
            )


@config
class Model:
    trunk: Annotated[Any, TRUNKS] = field(
        default_factory=lambda: Plain(stack=Stack(frame=Frame(dim=64, heads=4)))
    )
    classes: int | None = None
    flag: bool = False


def test_a_table_is_read_by_the_hints():
    found = read(Stack, {"frame": {"dim": 4, "dropout": 1}, "mixer": "window(reach=[2, 3])"})
    assert found == Stack(frame=Frame(dim=4, dropout=1.0), mixer=Window(reach=(2, 3)))
    assert isinstance(found.frame.dropout, float)
    assert read(Stack, found) is found
    assert read(tuple[int, ...], [1, 2]) == (1, 2)


def test_a_family_is_a_spec_a_table_or_a_config():
    forms = ("window(reach=5)", {"name": "window", "reach": 5}, Window(reach=5))
    assert len({Stack(mixer=form).mixer for form in forms}) == 1
    several = ("full, window", ["full", {"name": "window"}], (Full(), Window()))
    assert {Stack(mixer=form).mixer for form in several} == {(Full(), Window())}
    assert Stack(mixer="window(inner=window(inner=full))").mixer.inner.inner == Full()
    assert Stack(mixer="window(kind=soft, note=text)").mixer == Window(kind="soft", note="text")


def test_none_is_a_word_where_no_text_is_meant():
    assert Frame(dim=4, head_dim="none").head_dim == 2
    assert Stack(mixer="window(inner=none)").mixer.inner is None
    assert Stack(mixer={"name": "window", "inner": "none"}).mixer.inner is None
    assert Window(note="none").note == "none"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Frame(dim=4, head=3), "Frame has no setting 'head'; did you mean 'heads'"),
        (lambda: Frame(), "Frame needs dim: give dim="),
        (lambda: Frame(4), "Frame takes 0 settings by place, the rest by name: dim, heads"),
        (lambda: Frame(dim="4"), "Frame.dim is a whole number; got '4'"),
        (lambda: Frame(dim=True), "Frame.dim is a whole number; got True"),
        (lambda: Frame(dim=4.0), "Frame.dim is a whole number; got 4.0"),
        (lambda: Frame(dim=2**63), "Frame.dim is a number of up to 63 bits; got one of 64"),
        (lambda: Frame(dim=4, dropout=10**400), "Frame.dropout is a number of up to 63 bits; got"),
        (lambda: read(Frame, {"dim": -(2**63)}), "Frame.dim is a number of up to 63 bits; got one"),
        (lambda: Frame(dim=4, dropout="a"), "Frame.dropout is a number; got 'a'"),
        (lambda: Frame(dim=4, head_dim="a"), "head_dim is a whole number or 'none'; got 'a'"),
        (lambda: Frame(dim=4, box=[1]), "Frame.box is a list of 2; got [1]"),
        (lambda: Frame(dim=4, box=[1, 2]), "Frame.box[1] is a text; got 2"),
        (lambda: Model(flag=1), "Model.flag is true or false; got 1"),
        (lambda: Stack(notes={"a": "b"}), "Stack.notes.a is a whole number; got 'b'"),
        (lambda: Stack(notes=3), "Stack.notes is a table; got 3"),
        (lambda: Stack(frame=3), "Stack.frame is a Frame (a table of dim, heads, "),
        (lambda: Stack(mixer=5), "Stack.mixer is a mixer"),
        (lambda: Stack(mixer="windw"), "Stack.mixer: no mixer named 'windw'; did you mean 'window"),
        (lambda: Stack(mixer="window(rech=1)"), "Stack.mixer: window has no setting 'rech'; did"),
        (lambda: Stack(mixer="full, window(reach=a)"), "Stack.mixer[1].reach is a whole number or"),
        (lambda: Stack(mixer={"reach": 1}), "Stack.mixer: a mixer needs a 'name'; got ['reach']"),
        (lambda: Stack(mixer="window("), "Stack.mixer: expected a name or a value at column 8"),
        (lambda: Window(kind="hrd"), "window.kind is one of 'hard', 'soft'; got 'hrd'; did you m"),
        (lambda: read(Model, 3, "model"), "model is a Model (a table of trunk, classes, flag); go"),
    ],
)
def test_what_does_not_fit_names_its_place(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert message in str(caught.value)


def test_the_rules_of_a_config_name_the_place_too():
    with pytest.raises(WeftError, match=r"^m.trunk.stack.mixer: reach is at least 1; got 0"):
        changed(Model(), {"mixer": "window(reach=0)"}, "m")
    with pytest.raises(Unsupported, match=r"^m.trunk.stack.mixer: a reach of 1"):
        changed(Model(), {"mixer": "window(reach=1)"}, "m")


def test_a_change_keeps_the_rest():
    base = Model(classes=5)
    found = changed(base, {"trunk": {"stack": {"frame": {"heads": 8}}}})
    assert found.trunk.stack.frame == Frame(dim=64, heads=8)
    assert found.trunk.stack.frame.head_dim == 8, "what was not given follows what was"
    assert found.classes == 5
    kept = Model(trunk=Plain(stack=Stack(frame=Frame(dim=64, heads=4, head_dim=16))))
    assert changed(kept, {"heads": 8}).trunk.stack.frame.head_dim == 16


def test_short_names_stand_for_full_places():
    full = {"trunk": {"stack": {"frame": {"dim": 32, "heads": 8}, "layers": 3}}}
    assert changed(Model(), {"dim": 32, "heads": 8, "layers": 3}) == changed(Model(), full)
    assert changed(Model(), {"stack": {"layers": 3}, "frame": {"dim": 32, "heads": 8}}) == changed(
        Model(), full
    )
    found = changed(Model(), {"reach": 7, "mixer": {"name": "window", "note": "x"}})
    assert found.trunk.stack.mixer == Window(reach=7, note="x"), "of the kind that is chosen"
    with pytest.raises(WeftError, match="no setting 'reach'"):  # a spec is complete
        changed(Model(), {"reach": 7, "mixer": "window(note='x')"})
    assert changed(Model(), {"trunk": "funnel(blocks=2)", "dim": 4}).trunk.stack.frame.dim == 4


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"dropout": 0.1},
            "m.dropout may be one of several settings: write trunk.stack.dropout or "
            "trunk.stack.frame.dropout",
        ),
        ({"dims": 3}, "m has no setting 'dims'; did you mean 'dim'"),
        ({"stack": {"dims": 3}}, "m.trunk.stack has no setting 'dims'; did you mean 'dim'"),
        ({"dim": 3, "frame": {"dim": 4}}, "is given twice"),
        ({"dim": "a"}, "m.trunk.stack.frame.dim is a whole number; got 'a'"),
        ({"trunk": {"name": "funel"}}, "m.trunk: no trunk named 'funel'; did you mean 'funnel'"),
        ({"blocks": 3}, "m has no setting 'blocks'"),
        ({"left": 3}, "m has no setting 'left'"),
        ({"mixer": {"reach": 3}}, "m.trunk.stack.mixer: full has no setting 'reach'"),
        (3, "m is a Model"),
        ({"trunk": 3}, "m.trunk is a trunk: "),
        ({"trunk": "none", "dim": 4}, "m.trunk is 'none', which has no settings, and 'dim' is one"),
        ({"trunk": "3", "dim": 4}, "m.trunk is '3', which has no settings, and 'dim' is one of it"),
        ({"trunk": 3, "dim": 4}, "m.trunk is 3, which has no settings, and 'dim' is one of it"),
        ({"frame": 3}, "m.trunk.stack.frame is a Frame"),
        ({"reach": 3, "mixer": ["full", "window"]}, "m has no setting 'reach'"),
    ],
)
def test_a_change_that_does_not_fit(table, message):
    with pytest.raises(WeftError) as caught:
        changed(Model(), table, "m")
    assert message in str(caught.value)


def test_files_in_which_nothing_is_short_are_strict():
    with pytest.raises(WeftError, match="Model has no setting 'dim'; known: classes, flag, trunk"):
        read(Model, {"dim": 3})


def test_another_kind_takes_over_the_parts_that_both_have():
    base = Model(trunk=Funnel(stack=Stack(frame=Frame(dim=16)), blocks=5))
    assert changed(base, {"trunk": "plain"}).trunk == Plain(stack=base.trunk.stack)
    found = changed(base, {"trunk": "funnel", "heads": 4}).trunk
    assert found == Funnel(stack=Stack(frame=Frame(dim=16, heads=4))), "a name starts anew"
    assert changed(base, {"trunk": {"stack": {"order": "s"}}}).trunk.blocks == 5
    mixer = changed(Stack(mixer=Window(reach=9)), {"mixer": "window(kind=soft)"}).mixer
    assert mixer == Window(kind="soft")


def test_what_a_config_fills_in_may_be_changed_in_part():
    base = Model()
    found = changed(base, {"trunk": "pair", "dim": 12}).trunk
    assert found.left.stack.frame == Frame(dim=12, heads=4)
    assert found.right.stack.frame == Frame(dim=12, heads=1)
    other = changed(base, {"trunk": {"name": "pair", "right": {"order": "f"}}, "dim": 12}).trunk
    assert other.right == changed(found.right, {"order": "f"})
    again = changed(Model(trunk=found), {"dim": 20}).trunk
    assert again.right.stack.frame == Frame(dim=20, heads=1), "it follows"


def test_writing_is_plain_and_whole_or_brief():
    one = Model(
        trunk=Funnel(stack=Stack(frame=Frame(dim=16), mixer=("full", Window(reach=(1 + 1,)))))
    )
    whole = json.loads(json.dumps(write(one)))
    assert whole["trunk"]["stack"]["frame"]["head_dim"] == 8
    assert read(Model, whole) == one
    brief = write(one, brief=True)
    assert brief == {
        "trunk": {
            "name": "funnel",
            "stack": {
                "frame": {"dim": 16, "heads": 2},
                "mixer": [{"name": "full"}, {"name": "window", "reach": [2]}],
            },
        }
    }
    assert read(Model, brief) == one
    assert write(Model(), brief=True) == {}


def test_a_default_that_is_a_config_is_laid_over():
    """What a table leaves out is that of the default in its place, not that of the class."""
    found = read(Model, {"trunk": {"name": "plain", "stack": {"order": "s"}}})
    assert found.trunk.stack.frame.dim == 64


numbers = st.integers(1, 2**40)
texts = st.text(max_size=6)
mixers = st.deferred(
    lambda: (
        st.builds(Full, scale=st.none() | st.floats(allow_nan=False))
        | st.builds(
            Window,
            reach=st.integers(2, 9) | st.lists(st.integers(2, 9), max_size=3),
            kind=st.sampled_from(["hard", "soft"]),
            note=texts,
            inner=st.none() | mixers,
        )
    )
)
frames = st.builds(
    Frame,
    dim=numbers,
    heads=st.integers(1, 9),
    head_dim=st.none() | st.integers(1, 9),
    dropout=st.floats(0, 1),
    box=st.tuples(st.integers(-(2**63) + 1, 2**63 - 1), texts),
)
stacks = st.builds(
    Stack,
    frame=frames,
    mixer=mixers | st.lists(mixers, min_size=1, max_size=3),
    order=texts,
    notes=st.dictionaries(st.text(min_size=1, max_size=3), numbers, max_size=2),
)
plains = st.builds(Plain, stack=stacks)
trunks = (
    plains
    | st.builds(Funnel, stack=stacks, blocks=numbers)
    | st.builds(Pair, left=plains, right=st.none() | plains)
)
models = st.builds(Model, trunk=trunks, classes=st.none() | st.integers(0, 99), flag=st.booleans())


def as_toml(value: Any) -> Any:
    """TOML has no null: the word stands for it."""
    if isinstance(value, dict):
        return {key: as_toml(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_toml(inner) for inner in value]
    return "none" if value is None else value


@given(models)
def test_any_tree_survives_json_and_toml(one):
    for brief in (False, True):
        table = write(one, brief=brief)
        assert read(Model, json.loads(json.dumps(table))) == one
        assert read(Model, tomllib.loads(tomli_w.dumps(as_toml(table)))) == one


@given(models)
def test_a_brief_table_is_the_change_from_the_defaults(one):
    assert changed(Model(), write(one, brief=True)) == one


@given(trunks.filter(lambda one: "notes" not in str(one)))
def test_any_tree_survives_its_spec(one):
    """Tables of free names are the exception: a spec has none."""
    assert TRUNKS.parse(str(one)) == one
