"""Mutation testing: a seeded sample of small changes of src, each against the tests near it.

    python tests/campaigns/mutants.py --count 100 --seed 1 [--under src/weft/patterns]

A mutant changes one place of one file: a comparison, an operator, a whole number, a condition, a
truth value, or two arguments exchanged. It is caught if the tests that import its file fail. Those
that survive are printed with their line; the score is the share that was caught. Mutants run on a
copy of the tree, so the working tree stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600  # for the tests of one mutant; a mutant that hangs is caught
# Not tested without a GPU, or where a change cannot be told apart (words, colours).
LEFT_OUT = re.compile(r"kernels/.*kernels\.py|triton|/page/|/charts/|templates|__main__|flex\.py")
COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
JOINED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """A file, its line, what is changed, and the new text of the file."""

    path: Path
    line: int
    change: str
    text: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docs = _docstrings(tree) | _annotations(tree)
    for node in ast.walk(tree):
        if id(node) in docs:
            continue
        for old, new in _changes(node):
            text = _replaced(source, node, ast.unparse(new))
            yield Mutant(path, node.lineno, f"{old} -> {ast.unparse(new)}", text)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(old text, new node) for each way to change a node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
        other = COMPARED[type(node.ops[0])]()
        yield ast.unparse(node), ast.Compare(node.left, [other], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in JOINED and not _is_text(node):
        yield ast.unparse(node), ast.BinOp(node.left, JOINED[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.unparse(node), ast.BoolOp(JOINED[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node), node.operand
    elif isinstance(node, ast.IfExp):
        yield ast.unparse(node), ast.IfExp(node.test, node.orelse, node.body)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield ast.unparse(node), ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.unparse(node), ast.Constant(node.value + 1)
    elif isinstance(node, ast.Call) and len(node.args) > 1 and not _starred(node):
        first, second, *rest = node.args
        yield ast.unparse(node), ast.Call(node.func, [second, first, *rest], node.keywords)


def _is_text(node: ast.BinOp) -> bool:
    parts = (node.left, node.right)
    return any(isinstance(x, ast.JoinedStr | ast.Constant) and not _number(x) for x in parts)


def _number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _starred(node: ast.Call) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in node.args)


def _docstrings(tree: ast.AST) -> set[int]:
    """Nodes inside error messages and asserts, whose change nothing could notice."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
            found |= {id(inner) for inner in ast.walk(node)}
    return found


def _annotations(tree: ast.AST) -> set[int]:
    found = set()
    for node in ast.walk(tree):
        for part in ("annotation", "returns"):
            if (hint := getattr(node, part, None)) is not None:
                found |= {id(inner) for inner in ast.walk(hint)}
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript | ast.BinOp):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if names and names[0][:1].isupper() and not names[0].isupper():  # a type's alias
                found |= {id(inner) for inner in ast.walk(node.value)}
    return found


def _replaced(source: str, node: ast.expr, new: str) -> str:
    """The source with the text of one node replaced."""
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + f"({new})".encode() + after).decode()


def tests_near(path: Path) -> list[str]:
    """The test files that name the module or what it defines, those of its own name first."""
    module = ".".join(["weft", *path.relative_to(ROOT / "src" / "weft").with_suffix("").parts])
    stem, family = path.stem, path.parent.name
    defined = [
        node.name
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    words = re.compile("|".join(rf"\b{re.escape(w)}\b" for w in (module, stem, *defined)))
    scored = []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        if {"gpu", "campaigns", "fixtures", "digests"} & set(test.parts):
            continue
        found = len(words.findall(test.read_text(encoding="utf-8")))
        if found:
            near = (test.stem == f"test_{stem}") * 100 + (test.parent.name == family) * 10 + found
            scored.append((-near, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(scored)[:6]]


def caught(mutant: Mutant, tree: Path) -> tuple[bool, float]:
    """Whether the tests near a mutant fail on it, and how long they took."""
    place = tree / mutant.path.relative_to(ROOT)
    whole = place.read_text(encoding="utf-8")
    place.write_text(mutant.text, encoding="utf-8")
    began = time.monotonic()
    try:
        tests = tests_near(mutant.path)
        if "mixers/" in str(mutant.path):
            tests += ["tests/contract/test_mixers.py", "-k", mutant.path.stem]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long and not gpu", *tests]
        command += ["-p", "no:cacheprovider", "-W", "ignore"]
        variables = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
        settings = {"cwd": tree, "env": variables, "capture_output": True}
        done = subprocess.run(command, timeout=SECONDS, **settings)
        return done.returncode != 0, time.monotonic() - began
    except subprocess.TimeoutExpired:
        return True, time.monotonic() - began
    finally:
        place.write_text(whole, encoding="utf-8")


def main() -> int:
    """Draw mutants, run them, print the survivors and the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="src/weft")
    parser.add_argument("--goal", type=float, default=0.98)
    parser.add_argument("--minutes", type=float, default=240.0, help="stop after these")
    given = parser.parse_args()
    draw, began = random.Random(given.seed), time.monotonic()
    files = [p for p in sorted((ROOT / given.under).rglob("*.py")) if not LEFT_OUT.search(str(p))]
    found = {path: made for path in files if (made := list(mutants_of(path)))}
    with tempfile.TemporaryDirectory(prefix="weft-mutants-") as scratch:
        tree = Path(scratch) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", "*.pyc")
        shutil.copytree(ROOT, tree, ignore=ignored)
        ran = survived = 0
        while ran < given.count and time.monotonic() - began < 60 * given.minutes:
            # By file first: long files have most places, and no more defects for it.
            mutant = draw.choice(found[draw.choice(list(found))])
            if not tests_near(mutant.path) and "mixers/" not in str(mutant.path):
                continue
            was_caught, seconds = caught(mutant, tree)
            ran, survived = ran + 1, survived + (not was_caught)
            what = "caught  " if was_caught else "SURVIVED"
            where = f"{mutant.path.relative_to(ROOT)}:{mutant.line}"
            print(f"{ran:4d} {what} {seconds:5.0f} s  {where}  {mutant.change[:100]}", flush=True)
    score = 1 - survived / max(ran, 1)
    print(f"{ran} mutants, {ran - survived} caught, {survived} survived: {score:.1%}")
    return 0 if score >= given.goal else 1


if __name__ == "__main__":
    raise SystemExit(main())
