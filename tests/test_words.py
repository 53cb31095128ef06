"""One vocabulary: a class name means one thing in the package, and prose uses the field's words."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import weft

SOURCE = Path(weft.__file__).parent
ROOT = Path(__file__).parent.parent
SUFFIXES = {".py", ".cpp", ".h", ".txt", ".toml", ".js", ".css"}
PAGES = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]

# Class names that are defined twice on purpose, each with the reason.
TWICE: dict[str, str] = {}

# Phrases of a private language, and what to say instead.
PHRASES = {
    r"\bways? back\b": "backward pass",
    r"\bno one (reads|leaves|waits|sees|looks)\b": "unused, never read",
    r"\bone behind (another|the other)\b": "contiguous",
    r"\b(stands?|standing|laid|heads|means|states) side by side\b": "concatenated, in parallel",
    r"(?<!there )\bis no (TOML|JSON|XML|NaN|saved|model|token|multiple|pattern)\b": "is not a",
    r"\bthat (is|are) none\b": "say what is missing",
    r"\bgives? (it|them) away\b": "exposes, returns",
    r"\b(has|have) served\b": "is no longer needed",
    r"\bso many [a-z ]+ at most\b|\bat most so many\b": "up to N",
    r"\bheats?\b": "temperature",
    r'"""The module\."""': "drop it, or say what the signature does not",
}


def ambiguous(sources):
    """{class name: its places} of the names that (place, text) pairs define more than once."""
    found = defaultdict(list)
    for place, text in sources:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(f"{place}:{node.lineno}")
    return {name: places for name, places in found.items() if len(places) > 1}


def dialect(text):
    """(phrase, what to say instead) of a text, whose phrases may run over lines and comments."""
    prose = re.sub(r"\s*\n\s*(#|//)?\s*", " ", text)
    return [
        (match[0], instead)
        for pattern, instead in PHRASES.items()
        for match in re.finditer(pattern, prose, re.IGNORECASE)
    ]


def unreleased():
    """The newest part of the change log; what older versions said stays."""
    return re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)[1]


def written():
    """(place, text) of all that a reader of the code or the documents meets."""
    for path in sorted(p for p in SOURCE.rglob("*") if p.suffix in SUFFIXES):
        yield str(path.relative_to(SOURCE)), path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md")) + [ROOT / page for page in PAGES]:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    yield "CHANGELOG.md", unreleased()


def test_a_class_name_means_one_thing():
    texts = [(place, text) for place, text in written() if place.endswith(".py")]
    assert len(texts) > 300
    assert ambiguous(texts).keys() == TWICE.keys()


def test_no_private_words():
    found = {place: words for place, text in written() if (words := dialect(text))}
    assert found == {}


def test_the_change_log_is_read():
    assert "### Added" in unreleased()


def test_a_second_meaning_is_found():
    twins = [("a.py", "class Plan: ..."), ("b.py", "def f():\n    class Plan: ...")]
    assert ambiguous(twins) == {"Plan": ["a.py:1", "b.py:2"]}
    assert ambiguous(twins[:1]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "what the way\n    # back needs",
        "rows that no one reads",
        "sequences one behind\n// another",
        "the four means stand side by side",
        'raise WeftError(f"{path} is no TOML")',
        "One row that is none.",
        "where torch gives it away",
        "# they have served",
        "of so many different lengths at most",
        "softmax of the scores over heat",
        'def build(self):\n    """The module."""',
    ],
)
def test_a_phrase_is_found(text):
    assert len(dialect(text)) == 1


def test_what_is_like_it_is_allowed():
    plain = "There is no model here. Charts side by side. No one tries it twice. So many registers."
    assert dialect(plain) == []
