"""The documentation as a site: `make docs` runs `python docs/site.py`, then opens nothing.

The documents link to files of the repository, so that they are read there as well. A site has pages
alone: this script copies the pages into build/docs, makes README.md the first one, and turns links
to other files into plain text. Then mkdocs builds build/site; a warning is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def place_of(source: Path) -> Path | None:
    """Where a file of the repository stands in the site, below build/docs; None: nowhere."""
    source = source.resolve()
    if source == ROOT / "README.md":
        return Path("index.md")
    if source.parent == ROOT and source.suffix == ".md":
        return Path("project") / source.name
    docs = ROOT / "docs"
    if source.is_relative_to(docs) and source.suffix in (".md", ".png", ".css", ".ipynb"):
        return source.relative_to(docs)
    return None


def page(source: Path) -> str:
    """A document with links that lead somewhere in the site."""
    own = place_of(source)
    assert own is not None

    def link(found: re.Match[str]) -> str:
        image, text, address = found.groups()
        if re.match(r"[a-z]+:|#", address):
            return found.group()
        path, hash_, anchor = address.partition("#")
        target = place_of(source.parent / path)
        if target is None or target.suffix == ".ipynb":
            return text
        there = Path(os.path.relpath(target, own.parent)).as_posix()
        return f"{image}[{text}]({there}{hash_}{anchor})"

    parts = _CODE.split(source.read_text(encoding="utf-8"))
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)


def sources() -> list[Path]:
    """The pages, pictures and styles of the site."""
    kinds = ("*.md", "*.png", "*.css")
    return sorted([*ROOT.glob("*.md"), *(p for kind in kinds for p in (ROOT / "docs").rglob(kind))])


def copy() -> None:
    """Write build/docs."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for source in sources():
        place = place_of(source)
        assert place is not None
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            (PAGES / place).write_text(page(source), encoding="utf-8")
        else:
            shutil.copyfile(source, PAGES / place)


def main() -> int:
    """Copy, then build."""
    copy()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "true"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode == 0:
        print(f"open {SITE / 'index.html'}; its search needs a server:")
        print(f"python -m http.server --directory {SITE}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
