"""Parts of others: found by entry point, variable and option, named by files, never run by them."""

import json
import subprocess
import sys

import pytest
import torch
import typer
from typer.testing import CliRunner

from weft import plugins
from weft.arena.grid.grid import read_grid
from weft.cli import app
from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Decoder, Stack, load, save
from weft.plugins import load_plugins, modules_of, note, noted, required

run = CliRunner().invoke

NEARBY = '''
from dataclasses import dataclass
from typing import ClassVar

from weft.mixers import MIXERS, Traits
from weft.mixers.base.under_pattern import PatternAttention
from weft.patterns import Sliding


@MIXERS.register("nearby")
@dataclass(frozen=True, kw_only=True)
class Nearby:
    """Reads the neighbours."""

    reach: int = 2

    traits: ClassVar[Traits] = Traits(
        family="test", paper="", time="n", memory="n", state="2 g d w", causal=True
    )

    def build(self, frame):
        return PatternAttention(self, frame, Sliding(self.reach))
'''


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path with a plug-in in it; what it registers is gone afterwards."""
    entries, modules = dict(MIXERS._entries), set(sys.modules)
    for name, fresh in (("_named", {}), ("_broken", {}), ("_installed", False)):
        monkeypatch.setattr(plugins, name, fresh)
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "nearby_plugin.py").write_text(NEARBY)
    monkeypatch.syspath_prepend(folder)
    yield folder
    forget(entries, modules)


def forget(entries, modules=frozenset()):
    MIXERS._entries.clear()
    MIXERS._entries.update(entries)
    for name in [n for n in sys.modules if n.endswith("_plugin") and n not in modules]:
        del sys.modules[name]


def install(site, **points):
    """What pip leaves of a package with entry points."""
    info = site / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in points.items())
    (info / "entry_points.txt").write_text(f"[weft.plugins]\n{lines}")


@pytest.mark.parametrize(
    "ask",
    [
        lambda: MIXERS.parse("nearby(reach=3)"),
        lambda: MIXERS["nearby"],
        lambda: "nearby" in MIXERS or pytest.fail("not there"),
        lambda: list(MIXERS).index("nearby"),
    ],
    ids=["parse", "item", "in", "list"],
)
def test_an_entry_point_is_loaded_when_it_is_asked_for(site, ask):
    install(site, nearby="nearby_plugin")
    assert MIXERS["full"].name == "full"
    assert "nearby_plugin" not in sys.modules, "a known name loads nothing"
    ask()
    assert "nearby_plugin" in sys.modules


def test_a_broken_entry_point_is_named_and_breaks_nothing(site):
    (site / "broken_plugin.py").write_text("raise ZeroDivisionError('no luck')")
    install(site, first="broken_plugin", second="nearby_plugin")
    with pytest.warns(UserWarning, match=r"'first' \(broken_plugin\).*ZeroDivisionError: no luck"):
        assert "nearby" in list(MIXERS)
    assert len(MIXERS) > 2
    with pytest.raises(WeftError, match=r"no mixer named 'mine'.*'first'.*no luck"):
        MIXERS["mine"]


def test_the_variable_names_modules(site, monkeypatch):
    monkeypatch.setenv("WEFT_PLUGINS", " nearby_plugin, ")
    assert str(MIXERS.parse("nearby")) == "nearby"


def test_a_wrong_variable_says_so_each_time(site, monkeypatch):
    monkeypatch.setenv("WEFT_PLUGINS", "no_such_plugin")
    for _ in range(2):
        with pytest.raises(WeftError, match=r"plug-in of WEFT_PLUGINS, 'no_such_plugin'"):
            list(MIXERS)


def test_whatever_a_named_module_does_wrong_is_one_error(site):
    (site / "broken_plugin.py").write_text("1 / 0")
    with pytest.raises(WeftError, match="'broken_plugin': ZeroDivisionError"):
        load_plugins(["broken_plugin"])
    assert plugins.named() == ()


def test_a_class_that_is_defined_again_replaces_itself(site):
    """A cell of a notebook is run again; another class of that name is still refused."""
    for _ in range(2):
        exec(NEARBY, {"__name__": "notebook"})
    with pytest.raises(WeftError, match="registered twice"):
        exec(NEARBY, {"__name__": "another"})
    with pytest.raises(WeftError, match="registered twice"):
        MIXERS.register("full")(MIXERS["full"])


def verbs(command, path=()):
    if not hasattr(command, "commands"):
        yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*path, name))


def test_every_verb_takes_plugins():
    found = dict(verbs(typer.main.get_command(app)))
    assert len(found) > 10
    for path, command in found.items():
        assert "--plugin" in [o for p in command.params for o in p.opts], " ".join(path)


@pytest.mark.parametrize("before", [True, False], ids=["before the verb", "behind it"])
def test_a_verb_knows_the_parts_of_a_plug_in(site, before):
    assert "nearby" not in run(app, ["mixers", "--json"]).output
    option = ["--plugin", "nearby_plugin"]
    args = [*option, "mixers", "--json"] if before else ["mixers", "--json", *option]
    done = run(app, args)
    assert done.exit_code == 0, done.output
    assert "nearby" in [row["name"] for row in json.loads(done.stdout)]
    assert plugins.named() == ("nearby_plugin",)


def model(site):
    load_plugins(["nearby_plugin"])
    stack = Stack(frame=Frame(dim=8, heads=2), order="sfsf", mixer=("full", "nearby(reach=3)"))
    return Decoder(embedding=Embedding(vocab=11), stack=stack).build().eval()


def test_a_saved_model_names_its_modules(site, tmp_path):
    before = dict(MIXERS._entries)
    made = model(site)
    folder = save(made, tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["modules"] == ["nearby_plugin"]
    forget(before)
    with pytest.raises(WeftError, match=r"no mixer named 'nearby'.*--plugin nearby_plugin.*code"):
        load(folder)
    assert "nearby_plugin" not in sys.modules, "the file chose what to run"
    again = load(folder, plugins=["nearby_plugin"])
    x = torch.arange(9)[None]
    assert torch.equal(again(x), made(x))


def test_a_model_of_weft_alone_names_none(tmp_path):
    stack = Stack(frame=Frame(dim=8, heads=2), order="sf", mixer="full")
    made = Decoder(embedding=Embedding(vocab=11), stack=stack).build()
    folder = save(made, tmp_path / "model")
    assert "modules" not in json.loads((folder / "config.json").read_text())


def test_parts_of_a_program_cannot_be_imported(site):
    names = {"__name__": "__main__"}
    exec(NEARBY, names)
    assert modules_of({"a": [names["Nearby"]()], "b": 3}) == ["__main__"]
    with pytest.raises(WeftError, match="define them before"):
        required(["__main__"], "it")


def test_a_run_says_what_it_was_made_with(site, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    note(folder)
    assert noted(folder) == []
    load_plugins(["nearby_plugin"])
    (folder / "plugins.json").write_text('{"plugins": ["first"]}')
    note(folder)
    assert noted(folder) == ["first", "nearby_plugin"], "a run that goes on keeps the earlier ones"
    (folder / "settings.toml").write_text('task = "of_a_plug_in"\n')
    forget({name: one for name, one in MIXERS._entries.items() if name != "nearby"})
    done = run(app, ["eval", str(folder)])
    assert done.exit_code == 1
    assert "no task named 'of_a_plug_in'" in done.output
    assert "--plugin first --plugin nearby_plugin" in done.output
    assert "nearby_plugin" not in sys.modules


def test_a_comparison_is_not_resumed_without_its_plug_ins(site, tmp_path):
    grid = {"format": 1, "plugins": ["nearby_plugin"], "contenders": {}}
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    with pytest.raises(WeftError, match=r"the comparison in .* uses parts of nearby_plugin"):
        read_grid(tmp_path)


def test_importing_weft_asks_for_no_plug_in():
    """Else a plug-in would be loaded while the modules that it needs are half imported."""
    program = (
        "import importlib, pkgutil, weft, weft.plugins\n"
        "weft.plugins.load_installed = lambda: 1 / 0\n"
        "for found in pkgutil.walk_packages(weft.__path__, 'weft.'):\n"
        "    if not found.name.endswith(('__main__', 'kernels', 'triton')):\n"
        "        importlib.import_module(found.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
