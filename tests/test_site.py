"""The documentation site: every page is in its navigation, and it builds without a warning."""

import re
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load_site():
    found = util.spec_from_file_location("docs_site", ROOT / "docs/site.py")
    made = util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


SITE = load_site()


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    shown = re.findall(r"^ +- .*: (\S+\.md)$", text, re.MULTILINE)
    pages = {SITE.place_of(path).as_posix() for path in SITE.sources() if path.suffix == ".md"}
    assert set(shown) == pages, "list each page under nav: in mkdocs.yml"
    assert len(shown) == len(set(shown))


def test_links_lead_to_pages_and_others_become_text():
    text = SITE.page(ROOT / "README.md")
    assert "](mixers.md)" in text
    assert "](project/CONTRIBUTING.md)" in text
    assert "](docs/" not in text
    assert "examples/own_pattern.py" not in text
    assert 'weft.pattern("' in SITE.page(ROOT / "docs/patterns.md") or "```python" in text


@pytest.mark.long
def test_the_site_builds_without_a_warning():
    pytest.importorskip("mkdocs", reason="comes with the extra docs")
    pytest.importorskip("material", reason="comes with the extra docs")
    pytest.importorskip("mkdocstrings", reason="comes with the extra docs")
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/site.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    page = (ROOT / "build/site/api.html").read_text()
    assert "a path (CSV, JSON lines, Parquet)" in page  # the docstring of weft.fit
