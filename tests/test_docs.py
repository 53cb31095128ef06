"""Documents say what the code does: their programs run, their tables and pictures are current."""

import dataclasses
import importlib.util
import re
import shlex
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import weft
from weft import plugins, spec
from weft.cli import app
from weft.mixers import MIXERS
from weft.patterns import pattern
from weft.patterns.derive import mask

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {name: ROOT / f"docs/mixers/{name}.md" for name in MIXERS}
HEADINGS = ("Equation", "Cost", "When to use it, and when not", "Settings", "In code")


def load_generator():
    found = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs/generate.py")
    made = importlib.util.module_from_spec(found)
    sys.modules[found.name] = made  # where a dataclass looks its module up
    found.loader.exec_module(made)
    return made


GENERATE = load_generator()


def named(path):
    return str(path.relative_to(ROOT))


def code_blocks(text, language):
    """The blocks of one language, each with the line it begins on."""
    for found in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if found.group(1) == language:
            yield text[: found.start()].count("\n") + 1, found.group(2)


def prose(text):
    """The document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def commands(text):
    """Lines of console blocks and `weft ...` in the prose, as arguments."""
    lines = [line for _, block in code_blocks(text, "console") for line in block.splitlines()]
    lines += re.findall(r"`(weft [a-z][^`]*)`", prose(text))
    return [shlex.split(line, comments=True) for line in lines]


ALL_COMMANDS = list(
    dict.fromkeys(tuple(args) for path in DOCUMENTS for args in commands(path.read_text()))
)
VERBS = [args for args in ALL_COMMANDS if args[:1] == ("weft",)]
PATTERNS = [args for args in VERBS if args[1] == "pattern" and len(args) > 2]


@pytest.fixture
def registry_as_before(monkeypatch):
    """A document may register a mechanism or load a plug-in; other tests must not meet it."""
    before = dict(MIXERS._entries)
    monkeypatch.setattr(plugins, "_named", {})
    yield
    for module in plugins.named():
        del sys.modules[module]
    MIXERS._entries.clear()
    MIXERS._entries.update(before)


WITH_PYTHON = [path for path in DOCUMENTS if "```python" in path.read_text()]


@pytest.mark.parametrize("path", WITH_PYTHON, ids=named)
def test_programs_run(path, tmp_path, monkeypatch, registry_as_before):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for line, block in code_blocks(path.read_text(), "python"):
        # Empty lines in front, so that a traceback names the line of the document.
        exec(compile("\n" * line + block, str(path), "exec"), names)


def test_programs_of_a_new_user_are_short():
    blocks = [block for _, block in code_blocks((ROOT / "README.md").read_text(), "python")]
    first, module, classifier = (lines_of(block) for block in blocks)
    assert len(first) <= 12
    assert any("weft.attention(" in line for line in module)
    assert len(module) <= 5
    assert any("weft.Classifier(" in line for line in classifier)
    assert any("global" in line for line in classifier)
    assert len(classifier) <= 15


def test_the_module_of_a_new_user_runs():
    blocks = [block for _, block in code_blocks((ROOT / "README.md").read_text(), "python")]
    names = {"torch": torch, "weft": weft}
    exec(blocks[1], names)
    x, mask = torch.randn(2, 40, 64), torch.ones(2, 40, dtype=torch.long)
    mask[0, 30:] = 0
    block = names["Block"]()
    block(x, mask).sum().backward()
    assert all(p.grad is not None for p in block.parameters())
    assert torch.equal(block(x, mask)[0, 30:], x[0, 30:])  # nothing is added to padding
    assert not torch.equal(block(x, mask)[0, :30], block(x, torch.ones_like(mask))[0, :30])


def lines_of(program):
    return [line for line in program.splitlines() if line.strip()]


@pytest.mark.parametrize("args", VERBS, ids=" ".join)
def test_commands_are_understood(args):
    group, rest = typer.main.get_command(app), list(args[1:])
    while hasattr(group, "commands") and rest:
        assert rest[0] in group.commands, f"weft has no verb {rest[0]!r}"
        group = group.commands[rest.pop(0)]
    if not rest:  # named in a sentence: its help says how to call it
        assert CliRunner().invoke(app, [*args[1:], "--help"]).exit_code == 0
    else:
        group.make_context("weft", rest)


@pytest.mark.parametrize("args", PATTERNS, ids=" ".join)
def test_pattern_commands_run(args, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some write a picture
    done = CliRunner().invoke(app, list(args[1:]))
    assert done.exit_code == 0, done.output


def test_other_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for args in ALL_COMMANDS:
        if args and args[0] == "make":
            assert re.search(rf"^{args[1]}:", makefile, re.MULTILINE), f"no target {args[1]}"
        elif args and args[0] == "pip":
            wanted = re.search(r"\[(.*)\]", args[-1])
            assert wanted is None or wanted.group(1) in extras
    assert ("make", "test") in ALL_COMMANDS
    assert ("make", "demo") in ALL_COMMANDS


def test_every_extra_is_in_the_readme_and_nothing_asks_for_a_package_that_is_not_published():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {args[-1] for args in ALL_COMMANDS if args[:2] == ("pip", "install")}
    assert {f".[{extra}]" for extra in project["optional-dependencies"]} <= asked
    for path in [*DOCUMENTS, *sorted((ROOT / "src").rglob("*.py"))]:
        if path.name != "CHANGELOG.md":
            found = re.search(r"pip install [^\n]*\bweft\b(?!-).*", path.read_text())
            assert found is None, f"{named(path)}: {found}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text())):
        if not link.startswith("http"):
            target = path.parent / link.partition("#")[0]
            assert target.exists(), f"{named(path)} links to {link}, which is not there"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_named_files_exist(path):
    """A file in backquotes stands in the tree, in src/weft, or beside the document."""
    for name in re.findall(r"`([\w./*-]+/[\w./*-]*)`", prose(path.read_text())):
        places = (ROOT, ROOT / "src/weft", path.parent)
        there = any(list(place.glob(name.rstrip("/"))) for place in places)
        # Results come with measuring; a tree without any is still whole.
        later = name.startswith(("runs/", "benchmarks/"))
        assert there or later, f"{named(path)} names {name}, which is not there"


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_named_things_exist(path):
    """`weft.a.b` in backquotes can be imported."""
    for name in re.findall(r"`weft\.([\w.]+)", prose(path.read_text())):
        found = weft
        for part in name.split("."):
            home = getattr(found, "__name__", "")
            try:
                found = getattr(found, part)
            except AttributeError:
                found = import_module(f"{home}.{part}")


@pytest.mark.parametrize("tree", ["README.md", "ARCHITECTURE.md"])
def test_trees_show_the_folders_there_are(tree):
    blocks = [block for _, block in code_blocks((ROOT / tree).read_text(), "")]
    shown = set(re.findall(r"^ *(\w+)/(?=\s)", "\n".join(blocks), re.MULTILINE))
    shown |= set(re.findall(r"(?<=\s)(\w+)/(?=\s{2})", "\n".join(blocks)))
    packages = {init.parent.name for init in (ROOT / "src/weft").glob("*/__init__.py")}
    assert packages <= shown, f"{tree} leaves out {packages - shown}"
    assert shown <= packages | {"tests", "benchmarks", "examples", "docs"}


WRITTEN = GENERATE.written()


@pytest.mark.parametrize("path", WRITTEN, ids=named)
def test_generated_sections_are_current(path):
    text = path.read_text()
    for name, content in WRITTEN[path].items():
        assert GENERATE.filled(text, name, content) == text, "run: python docs/generate.py"


def test_speed_and_memory_are_relative_to_the_mean_of_two_dense_turns_of_their_run():
    def run(length, *cases):
        """Case, updates per second and mode, one after the other."""
        for turn, (case, speed, mode) in enumerate(cases):
            made = {"case": case, "length": length, "turn": turn, "mode": mode}
            yield made | {"steps_per_second": speed, "peak_bytes": 2**30}

    def dense(speed):
        return ("full", speed, "graph")

    rows = [*run(10, dense(9.0), ("fnet", 1.0, "graph"), ("nsa", 18.0, "graph"), dense(9.0))]
    rows += run(10, dense(3.0), ("fnet", 8.0, "eager"), dense(5.0))  # nsa stays as it was
    rows += run(20, dense(1.0), ("nsa", 3.0, "graph"), dense(1.0))
    rows += run(10, dense(1.0), ("fnet", 7.0, "graph"))  # one dense turn: not finished
    speeds = GENERATE.lra_speed_table(rows).splitlines()
    assert speeds[0] == "| mechanism | 10 tokens | 20 tokens |"
    assert speeds[2] == "| `full`, updates/s | 4 | 1 |"
    assert speeds[3:] == ["| `nsa` | 2.00× | 3.00× |", "| `fnet` | 2.00×\\* | – |"]
    memory = GENERATE.lra_memory_table(rows).splitlines()
    assert memory[2:] == [
        "| `full`, GiB | 1.00 | 1.00 |",
        "| `nsa` | 1.00× | 1.00× |",
        "| `fnet` | 1.00× | – |",
    ]


def test_the_table_of_mixers_holds_their_traits():
    """Against the registry itself, not against the generator."""
    rows = (ROOT / "docs/mixers.md").read_text().splitlines()
    for name in MIXERS:
        traits = MIXERS[name]().traits
        (row,) = [row for row in rows if row.startswith(f"| [{name}](mixers/{name}.md) |")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        able = [traits.exact, traits.bidirectional, traits.causal, traits.cross]
        assert [cell == "yes" for cell in cells[2:6]] == able
        streams, state = ("yes", traits.state) if traits.state else ("–", "–")
        assert cells[6:] == [streams, traits.time, traits.memory, state]


def test_lists_of_limits_hold_the_traits():
    """Against the registry and by building, not against the generator."""
    text = (ROOT / "README.md").read_text()
    traits = {name: MIXERS[name]().traits for name in MIXERS}
    for what, able in {
        "cannot be causal": lambda t: not t.causal,
        "are causal by construction": lambda t: not t.bidirectional,
        "read another sequence": lambda t: t.cross,
        "do not decode token by token": lambda t: t.state is None,
        "are one graph of `torch.compile` on a CPU": lambda t: t.compiles,
    }.items():
        (line,) = re.findall(rf"^  - (\d+) of (\d+) {what}: (.*)\.$", text, re.MULTILINE)
        names = {name for name in MIXERS if able(traits[name])}
        assert (int(line[0]), int(line[1])) == (len(names), len(traits))
        assert set(line[2].split(", ")) == names


def test_who_takes_a_projection_is_found_by_building():
    text = (ROOT / "docs/terraformer.md").read_text()
    (line,) = re.findall(r"^- `multiplicative`, \d+ of \d+: (.*)\.$", text, re.MULTILINE)
    frame = weft.Frame(dim=64, heads=4, projection="multiplicative")
    assert weft.mixer("longformer").build(frame)
    assert "longformer" in line.split(", ")
    with pytest.raises(weft.WeftError):
        weft.mixer("fnet").build(frame)
    assert "fnet" not in line.split(", ")


def test_the_facts_of_advice_are_those_of_the_rows():
    assert GENERATE.MEASURED.read_text() == GENERATE.measured_text(), "run: python docs/generate.py"


def test_the_summary_takes_the_last_row_and_shows_what_is_missing():
    def rows(*found):
        names = ("case", "measure", "length", "ratio_to_dense")
        return [dict(zip(names, row, strict=True)) for row in found]

    both = [("full", "forward+backward", 10, 1.0), ("nsa", "forward+backward", 10, None)]
    both += [("full", "memory", 10, 1.0), ("fnet", "forward+backward", 10, 4.0)]
    both += [("fnet", "forward+backward", 10, 0.5), ("fnet", "memory", 10, 1.25)]
    causal = [("full", "forward+backward", 10, 1.0), ("nsa", "forward+backward", 10, 2.0)]
    causal += [("nsa", "memory", 10, 3.0)]
    table = GENERATE.summary(rows(*both), rows(*causal)).splitlines()
    assert table[0] == "| mechanism | 10 | 10, causal | memory at 10 |"
    assert "| `full` | 1.00× | 1.00× | 1.00× |" in table
    assert "| `fnet` | 2.00× | – | 1.25× |" in table
    assert "| `nsa` | – | 0.50× | 3.00× |" in table


def test_results_have_their_place():
    text = (ROOT / "README.md").read_text()
    assert 0 < text.find("## Speed") < text.find("<!-- results:begin -->")
    assert text.find("<!-- results:begin -->") < text.find("<!-- results:end -->")


@pytest.mark.parametrize("name", PAGES)
def test_settings_are_the_config_s(name):
    text = PAGES[name].read_text().partition("## Settings")[2].partition("\n## ")[0]
    shown = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| \S.* \|$", text, re.MULTILINE)
    fields = dataclasses.fields(MIXERS[name])
    written = [spec.write("x", {f.name: f.default})[2:-1].split("=", 1) for f in fields]
    assert shown == [tuple(pair) for pair in written]


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_their_parts(name):
    text = PAGES[name].read_text()
    assert text.startswith(f"# {name}\n")
    for heading in HEADINGS:
        assert f"\n## {heading}\n" in text, f"no section {heading!r}"
    assert "\n## How ours differs from the paper" in text
    assert 40 <= len(text.splitlines()) <= 80


def test_pictures_are_small_current_and_used():
    from PIL import Image

    there = {path.stem: path for path in (ROOT / "docs/pictures").glob("*.png")}
    assert set(there) == set(GENERATE.PICTURES)
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    for name, path in there.items():
        assert path.stat().st_size < 60_000
        assert f"pictures/{name}.png" in text, f"no document shows {name}"
        with Image.open(path) as image:
            assert image.text["Title"] == GENERATE.PICTURES[name].title, "run docs/generate.py"


@pytest.mark.parametrize("name", [n for n, p in GENERATE.PICTURES.items() if p.mixer])
def test_pictures_show_what_the_mixer_reads(name):
    """Change one token at a time: the outputs that move are the queries that read it."""
    what, n = GENERATE.PICTURES[name], 160
    frame = weft.Frame(dim=4, heads=2, causal=what.causal)
    layer = weft.mixer(what.mixer).build(frame).double().eval()
    x = torch.randn(1, n, 4, dtype=torch.float64)
    changed = x + 3.0 * torch.eye(n, dtype=torch.float64)[:, :, None]
    with torch.no_grad():
        moved = (layer(changed) - layer(x)).abs().amax(-1).T > 1e-9  # (n, n): query, key
    assert torch.equal(moved, mask(pattern(what.pattern), n, heads=what.heads).any(0))


def test_a_picture_is_drawn_with_its_title(tmp_path):
    from PIL import Image

    with Image.open(GENERATE.draw("full", tmp_path)) as image:
        assert image.text["Title"] == GENERATE.PICTURES["full"].title
