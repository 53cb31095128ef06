"""What `import weft` offers, and what it does not load."""

import subprocess
import sys
import tomllib
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


@pytest.mark.parametrize("home", [patterns, mixers, models], ids=lambda home: home.__name__)
def test_every_public_name_is_at_the_top(home):
    for name in home.__all__:
        wins = name in patterns.__all__ or name not in mixers.__all__ or home is mixers
        if wins and not (home is mixers and name in patterns.__all__):
            assert getattr(weft, name) is getattr(home, name), name


def test_where_names_clash_the_pattern_wins():
    assert weft.Full is patterns.Full
    assert weft.Full is not mixers.Full
    assert weft.mixers.Full is mixers.Full


def test_modules_and_functions():
    from weft.kernels.attend import attend

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
    with pytest.raises(WeftError, match="a mixer spec reads like"):
        weft.mixer("512")


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Slidin'"):
        _ = weft.Slidin
    assert not hasattr(weft, "_private")


def test_dir_and_star():
    assert {"Sliding", "attend", "Longformer", "Encoder", "mixer", "WeftError"} <= set(dir(weft))
    found = {}
    exec("from weft import *", found)
    assert found["Sliding"] is patterns.Sliding
    assert found["Full"] is patterns.Full


def test_import_alone_loads_no_torch():
    done = fresh("import sys, weft; print('torch' in sys.modules, weft.__version__)")
    assert done.stdout.split()[0] == "False", done.stdout + done.stderr


def test_a_name_loads_what_it_needs():
    done = fresh("import weft; print(weft.Sliding(2) | weft.Strided(4), weft.mixers.Full())")
    assert "sliding(window=2) | strided(stride=4) full" in done.stdout, done.stderr


def test_the_version_is_the_project_s():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert weft.__version__ == project["version"]
