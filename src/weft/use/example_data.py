"""Small files to try weft with: `weft example-data` writes them.

reviews.csv   800 made-up reviews of books: book, body, stars ("good" or "bad")
new.csv       20 more, without stars
text.txt      text for a language model: source code of Python's own standard library
bytes.toml    settings of a small language model of it

The reviews are drawn from a few sentences, so a model can learn them in a minute; nothing about
real reviews follows from its score.
"""

from __future__ import annotations

import csv
import io
import random
import sysconfig
from pathlib import Path

from weft.errors import WeftError
from weft.files import write_bytes

COUNT, NEW = 800, 20
_SAID = {
    "good": ("Worth every page.", "I could not put it down.", "Every chapter is a delight."),
    "bad": ("A waste of time.", "I gave up halfway.", "Every chapter is a chore."),
}
_NEUTRAL = (
    "The story begins in a small town by the sea.",
    "My sister lent it to me last winter.",
    "It has four hundred pages and a map.",
    "The translation is by the same hand as before.",
    "There are letters, a trial and a long journey.",
)
_TEXT = ("asyncio/*.py", "json/*.py", "email/*.py")
_SETTINGS = """\
# A small language model of bytes: weft train bytes.toml
task = "language(length=256, folder='text.txt')"
mixer = "sliding_window(window=64)"

[model]
layers = 2
dim = 64
heads = 2
embedding.positions = "none"
frame.positions = "rope"

[training]
steps = 400
batch = 16
lr = 1e-2
warmup = 15
evaluate_every = 200
"""


def write_example_data(folder: str | Path = ".") -> list[Path]:
    """Write the files; one that is there already is refused, never replaced."""
    folder = Path(folder)
    files = {
        "reviews.csv": _table(_reviews(COUNT, 0), ["book", "body", "stars"]),
        "new.csv": _table(_reviews(NEW, 1), ["book", "body"]),
        "text.txt": _text(),
        "bytes.toml": _SETTINGS.encode(),
    }
    if there := [name for name in files if (folder / name).exists()]:
        raise WeftError(f"{', '.join(there)} is there already; choose another folder: --into")
    for name, content in files.items():
        write_bytes(folder / name, content)
    return [folder / name for name in files]


def _reviews(count: int, seed: int) -> list[dict[str, str]]:
    draw = random.Random(seed)
    rows: list[dict[str, str]] = []
    seen: set[str] = set()
    while len(rows) < count:
        stars = draw.choice(list(_SAID))
        said = [*draw.sample(_SAID[stars], 2), *draw.choices(_NEUTRAL, k=draw.randint(1, 4))]
        draw.shuffle(said)
        body = " ".join(said)
        if body in seen:  # books that share a text could not be split
            continue
        seen.add(body)
        rows.append({"book": f"book {draw.randint(1, 60)}", "body": body, "stars": stars})
    return rows


def _table(rows: list[dict[str, str]], columns: list[str]) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _text() -> bytes:
    library = Path(sysconfig.get_paths()["stdlib"])
    paths = [path for pattern in _TEXT for path in sorted(library.glob(pattern))]
    if not paths:
        raise WeftError(f"text.txt is made of Python files, and {library} has none of them")
    return b"\n".join(path.read_bytes() for path in paths)
