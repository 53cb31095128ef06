"""Mutation testing: a seeded sample of small changes of src, each against the tests near it.

    python tests/campaigns/mutants.py --count 100 --seed 1 [--under src/weft/patterns]
                                      [--rows mutants.jsonl]

A mutant changes one place of one file: a comparison, an operator, a whole number, a condition, a
truth value, or two arguments exchanged. It is caught if the tests that import its file fail. Those
that survive are printed with their line; the score is the share that was caught. Mutants run on a
copy of the tree, so the working tree stays as it is. A test that fails without the change as well
proves nothing: such mutants are left out of the score.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = 6  # test files that are run for a mutant
SYMMETRIC = ("min", "max", "torch.maximum", "torch.minimum", "np.maximum", "np.minimum")
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
    """A file, the place in it that is changed, and what it becomes."""

    path: Path
    source: str
    node: ast.expr
    change: str
    new: str

    @property
    def line(self) -> int:
        """Where it is."""
        return self.node.lineno

    @property
    def text(self) -> str:
        """The new text of the file."""
        return _replaced(self.source, self.node, self.new)

    @property
    def row(self) -> dict:
        """What names the mutant."""
        path = str(self.path.relative_to(ROOT))
        return {"path": path, "line": self.line, "change": self.change}

    @property
    def key(self) -> tuple:
        """What names the mutant, hashable."""
        return tuple(self.row.values())


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    docs = _docstrings(tree) | _annotations(tree)
    for node in ast.walk(tree):
        if id(node) in docs:
            continue
        for old, new in _changes(node):
            text = ast.unparse(new)
            yield Mutant(path, source, node, f"{old} -> {text}", text)


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
        if ast.unparse(first) != ast.unparse(second) and ast.unparse(node.func) not in SYMMETRIC:
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
    """The test files that name the module or what it defines, and those of its folders.

    Nearest are those of the same folders, then of the same name, then what names it most often.
    """
    inside = path.relative_to(ROOT / "src" / "weft").with_suffix("").parts
    words = [".".join(["weft", *inside]), *_defined(path)]
    named = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words))
    scored = []
    for test in _test_files():
        found = len(named.findall(test.read_text(encoding="utf-8")))
        shared = len({*inside[:-1]} & {*test.relative_to(ROOT / "tests").parts[:-1]})
        same_name = test.stem == f"test_{path.stem}" or test.stem.endswith(f"_{path.stem}")
        near = 60 * shared + (60 if shared else 30) * same_name + 50 * (found > 0) + min(found, 30)
        if found or shared:
            scored.append((-near, str(test.relative_to(ROOT))))
    return [name for _, name in sorted(scored)[:FILES]]


def _defined(path: Path) -> list[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    kinds = ast.FunctionDef | ast.ClassDef
    return [x.name for x in body if isinstance(x, kinds) and not x.name.startswith("_")]


def _test_files() -> list[Path]:
    left_out = {"gpu", "campaigns", "fixtures", "digests"}
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return [test for test in found if not left_out & set(test.parts)]


@dataclass
class Tree:
    """A copy of the tree, in which one file at a time is changed."""

    folder: Path
    minutes: float
    long: bool = False  # whether the tests that take minutes are run as well
    # Tests that fail without a change as well, here or on this machine: they prove nothing.
    broken: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)

    @classmethod
    def copied(cls, into: Path, minutes: float, long: bool) -> Tree:
        """Copy the working tree."""
        ignored = shutil.ignore_patterns(
            *(".git", ".venv", "runs", "carry", "shared", "__pycache__", "*.pyc", ".pytest_cache")
        )
        shutil.copytree(ROOT, into, ignore=ignored)
        return cls(into, minutes, long)

    def verdict(self, mutant: Mutant) -> dict:
        """Whether the tests near a mutant fail on it, by which test, and how long that took."""
        began = time.monotonic()
        runs = [tests] if (tests := tests_near(mutant.path)) else []
        if "mixers/" in str(mutant.path):
            runs.insert(0, ["tests/contract/test_mixers.py", "-k", mutant.path.stem])
        found = {"caught": False, "by": "", "sound": bool(runs)}
        for run in runs:
            found = self.judged(mutant, run)
            if found["caught"] or not found["sound"]:
                break
        return found | {"seconds": round(time.monotonic() - began, 1), "tests": tests}

    def judged(self, mutant: Mutant, run: list[str]) -> dict:
        """One run of tests on a mutant; what fails is run again without the change."""
        while True:
            by = self.failure(run, mutant)
            if not by:
                return {"caught": False, "by": "", "sound": True}
            again = [by] if by.startswith("tests/") else run
            if by in self.passed or not self.failure(again):
                self.passed |= {by} if by.startswith("tests/") else set()
                return {"caught": True, "by": by, "sound": True}
            if not by.startswith("tests/"):
                return {"caught": False, "by": by, "sound": False}
            self.broken.add(by)

    def failure(self, tests: list[str], mutant: Mutant | None = None) -> str:
        """The first test that fails, '' if none does; a test run that takes too long fails."""
        which = "not gpu" if self.long else "not long and not gpu"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", which, *tests]
        command += ["-p", "no:cacheprovider", "-W", "ignore"]
        if mutant is not None:
            command += [f"--deselect={name}" for name in sorted(self.broken)]
            command += [f"--ignore={name}" for name in sorted(self.broken) if "::" not in name]
        path = os.pathsep.join([str(self.folder / "src"), *_other_folders()])
        variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        settings = {"cwd": self.folder, "env": variables, "capture_output": True, "text": True}
        with self.changed(mutant):
            try:
                done = subprocess.run(command, timeout=60 * self.minutes, **settings)
            except subprocess.TimeoutExpired:
                return "too slow"
        if done.returncode in (0, 5):  # 5: no test has this name
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
        return failed[1] if failed else f"status {done.returncode}"

    @contextlib.contextmanager
    def changed(self, mutant: Mutant | None) -> Iterator[None]:
        """The tree with the change of a mutant."""
        if mutant is None:
            yield
            return
        place = self.folder / mutant.path.relative_to(ROOT)
        whole = place.read_text(encoding="utf-8")
        place.write_text(mutant.text, encoding="utf-8")
        try:
            yield
        finally:
            place.write_text(whole, encoding="utf-8")


def _other_folders() -> list[str]:
    """PYTHONPATH without the working tree's source, as absolute paths."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    found = [str(Path(path).resolve()) for path in given if path]
    return [path for path in found if path != str(ROOT / "src")]


def sampled(under: str, seed: int) -> Iterator[Mutant]:
    """Mutants in an order that the seed decides, each once."""
    files = [p for p in sorted((ROOT / under).rglob("*.py")) if not LEFT_OUT.search(str(p))]
    found = {path: made for path in files if (made := list(mutants_of(path)))}
    draw = random.Random(seed)
    while found:
        # By file first: long files have most places, and no more defects for it.
        path = draw.choice(list(found))
        yield found[path].pop(draw.randrange(len(found[path])))
        if not found[path]:
            del found[path]


def report(rows: list[dict], goal: float) -> int:
    """Print the survivors and the score; 1 if it is under the goal."""
    decided = [row for row in rows if row["sound"]]
    survivors = [row for row in decided if not row["caught"]]
    for row in survivors:
        print(f"SURVIVED {row['path']}:{row['line']}  {row['change'][:100]}")
    score = 1 - len(survivors) / max(len(decided), 1)
    print(
        f"{len(decided)} mutants, {len(decided) - len(survivors)} caught, {len(survivors)} "
        f"survived: {score:.1%}; {len(rows) - len(decided)} left out, their tests fail unchanged"
    )
    return 0 if score >= goal else 1


def main() -> int:
    """Draw mutants, run them, print the survivors and the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--under", default="src/weft")
    parser.add_argument("--goal", type=float, default=0.98)
    parser.add_argument("--minutes", type=float, default=240.0, help="stop after these")
    parser.add_argument("--each", type=float, default=5.0, help="minutes for the tests of a mutant")
    parser.add_argument("--long", action="store_true", help="also run tests of make check-long")
    parser.add_argument("--rows", type=Path, help="a file of rows: those in it are not run again")
    given = parser.parse_args()
    began, known = time.monotonic(), read_rows(given.rows)
    rows: list[dict] = []
    with tempfile.TemporaryDirectory(prefix="weft-mutants-") as scratch:
        tree = Tree.copied(Path(scratch) / "tree", given.each, given.long)
        for mutant in itertools.islice(sampled(given.under, given.seed), given.count):
            row = known.get(mutant.key)
            if row is None:
                if time.monotonic() - began > 60 * given.minutes:
                    break
                row = {**mutant.row, **tree.verdict(mutant)}
                if given.rows:
                    with given.rows.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
            rows.append(row)
            what = "caught" if row["caught"] else "SURVIVED"
            place = f"{row['path']}:{row['line']}"
            print(f"{len(rows):4d} {what:8} {row['seconds']:5.0f} s  {place}", flush=True)
    return report(rows, given.goal)


def read_rows(path: Path | None) -> dict[tuple, dict]:
    """The rows of an earlier run, by mutant."""
    if path is None or not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(row["path"], row["line"], row["change"]): row for row in rows}


if __name__ == "__main__":
    raise SystemExit(main())
