"""requirements-dev.lock: everything that the checks need, with hashes, and no host."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "requirements-dev.lock").read_text()
HASHES = r"(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+"
ENTRY = re.compile(rf"^([a-z0-9._-]+)==([^ ;\\]+)(?: ; [^\\]+)? \\\n({HASHES})", re.M)


def locked():
    return {found[1]: found[2] for found in ENTRY.finditer(TEXT)}


def test_every_entry_has_hashes_and_nothing_else_is_there():
    assert ENTRY.sub("", re.sub(r"^#.*\n", "", TEXT, flags=re.M)).strip() == ""
    assert len(locked()) > 30


def test_no_host_is_named():
    assert "://" not in TEXT
    assert "index" not in re.sub(r"^#.*", "", TEXT, flags=re.M)


def test_torch_is_pinned_elsewhere():
    """Its builds differ by machine, so no hash serves all."""
    assert not {"torch", "triton"} & locked().keys()
    assert "torch==" in (ROOT / "constraints.txt").read_text()


def needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[<>=\[ ]", text)[0].lower() for each in lists for text in each}
    return sorted(names - {"torch", "triton", "weft"})


@pytest.mark.parametrize("name", ["pytest", "ruff", "pyright", "hypothesis", "numpy", "rich"])
def test_what_the_checks_need_is_there(name):
    assert name in needed()
    assert name in locked()
