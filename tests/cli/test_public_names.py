"""What `import weft` offers, and what it does not load."""

import ast
import pkgutil
import subprocess
import sys
import tomllib
from importlib import import_module
from itertools import combinations
from pathlib import Path

import pytest

import weft
from weft import mixers, models, patterns
from weft.errors import WeftError

ROOT = Path(__file__).resolve().parents[2]


def fresh(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_patterns_join():
    both = weft.Sliding(256) | weft.Strided(64)
    assert both == patterns.pattern("sliding(256) | strided(64)")


def static_imports():
    """What an editor reads: the imports of the TYPE_CHECKING block, name and module."""
    tree = ast.parse(Path(weft.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    return [
        (alias.asname or alias.name, line.module) for line in block.body for alias in line.names
    ]


def static_names():
    return [(name, home) for name, home in static_imports() if home != "weft"]


def test_an_editor_sees_what_the_table_holds():
    assert sorted(static_names()) == sorted(weft._HOME_OF.items())
    assert sorted(name for name, _ in static_names()) == sorted(weft.__all__)
    assert len(set(weft.__all__)) == len(weft.__all__)


@pytest.mark.parametrize(("name", "home"), static_names())
def test_a_public_name_is_its_home_s(name, home):
    assert getattr(weft, name) is getattr(import_module(home), name)


def test_packages_are_attributes():
    packages = [name for name, home in static_imports() if home == "weft"]
    assert {"layers", "mixers", "models", "patterns"} <= set(packages)
    for name in packages:
        assert getattr(weft, name) is import_module(f"weft.{name}")


def test_no_name_stands_for_two_things():
    named = [name for names in weft._HOMES.values() for name in names.split()]
    assert len(set(named)) == len(named)
    modules = {info.name for info in pkgutil.iter_modules(weft.__path__)}
    assert not modules & set(named)
    packages = {home: set(home.__all__) for home in (patterns, mixers, models)}
    for one, another in combinations(packages, 2):
        assert not packages[one] & packages[another], f"{one.__name__} and {another.__name__}"
    for home, names in packages.items():
        for name in names & set(weft.__all__):
            assert getattr(weft, name) is getattr(home, name)


def test_names_that_are_easily_confused():
    assert weft.Full is patterns.Full
    assert weft.FullAttention is mixers.FullAttention
    assert weft.Perceiver is mixers.Perceiver
    assert weft.PerceiverIO is models.PerceiverIO


def test_modules_and_functions():
    from weft.kernels.attend.api import attend

    assert weft.attend is attend
    assert weft.mixers is mixers
    assert weft.Frame is mixers.Frame
    assert weft.pattern("sliding(3)") == weft.Sliding(3)


def test_mixer_reads_a_spec():
    config = mixers.Longformer(window=512)
    assert weft.mixer("longformer(window=512)") == config
    assert weft.mixer(config) is config
    with pytest.raises(WeftError, match="did you mean 'longformer'"):
        weft.mixer("longformr")
    with pytest.raises(WeftError, match="a mixer is a spec such as"):
        weft.mixer("512")


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Slidin'; did you mean 'Sliding'"):
        _ = weft.Slidin
    with pytest.raises(AttributeError, match=r"it is in weft\.mixers"):
        _ = weft.Reformer
    assert not hasattr(weft, "_private")


def test_dir_and_star():
    assert set(dir(weft)) == {*weft.__all__, "__version__"}
    found = {}
    exec("from weft import *", found)
    assert set(weft.__all__) <= set(found)
    assert found["Sliding"] is patterns.Sliding


def test_import_alone_loads_no_torch():
    done = fresh("import sys, weft; print('torch' in sys.modules, weft.__version__)")
    assert done.stdout.split()[0] == "False", done.stdout + done.stderr


def test_a_name_loads_what_it_needs():
    done = fresh(
        "import weft; print(weft.Sliding(2) | weft.Strided(4), weft.mixers.FullAttention())"
    )
    assert "sliding(window=2) | strided(stride=4) full" in done.stdout, done.stderr


def test_the_version_is_the_project_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert weft.__version__ == project["version"]
