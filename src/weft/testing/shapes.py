"""Shape comments, checked while the code runs: a stale one is found, not read.

    scores = q @ k.transpose(-1, -2)  # (b, h, n, m)

`checked_shapes(files)` traces calls into those files. After each assignment or return with such a
comment, the tensors must have that shape, each letter standing for one size within one call. A
letter that is also a whole-number variable of the function has its value. Sizes may be
expressions (`d / 2`, `h·d`, `2n`, `n + w`), compared once their letters are known; `...` stands for
any axes and `_` for any size. One comment for several targets holds for all of them;
`# (b, h, n, m), (b, h, n)` takes them in turn. What cannot be read is left alone.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor

Shape = tuple[str, ...]


@dataclass(frozen=True)
class Statement:
    """A commented statement: its lines, the names it assigns (None: it returns), the shapes."""

    first: int
    last: int
    names: tuple[str, ...] | None
    shapes: tuple[Shape, ...]


@dataclass
class ShapeTrace:
    """What a trace saw: `problems` as text, and how many tensors were `compared`."""

    problems: list[str] = field(default_factory=list)
    compared: int = 0
    seen: set[tuple[str, int]] = field(default_factory=set)  # file and line of each comment met


@contextmanager
def checked_shapes(files: Iterable[Path | str]) -> Iterator[ShapeTrace]:
    """Trace calls into `files` and compare their shape comments; read `.problems` afterwards."""
    trace = ShapeTrace()
    statements = {str(Path(f).resolve()): shape_comments(Path(f).read_text()) for f in files}

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        known = statements.get(frame.f_code.co_filename)
        return _Call(trace, known).follow if known else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield trace
    finally:
        sys.settrace(before)


@cache
def shape_comments(source: str) -> dict[int, Statement]:
    """The statements of a file that carry shape comments, under each of their lines."""
    comments = _comments(source)
    found: dict[int, Statement] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return):
            continue
        last = node.end_lineno or node.lineno
        shapes = comments.get(last) or comments.get(node.lineno)
        if shapes:
            statement = Statement(node.lineno, last, _names(node), shapes)
            found.update(dict.fromkeys(range(node.lineno, last + 1), statement))
    return found


class _Call:
    """One call being traced: the sizes its letters have, and the statement now running."""

    def __init__(self, trace: ShapeTrace, statements: dict[int, Statement]) -> None:
        self.trace, self.statements = trace, statements
        self.letters: dict[str, int] = {}
        self.waiting: list[tuple[str, int, str]] = []
        self.running: Statement | None = None

    def follow(self, frame: FrameType, event: str, arg: Any) -> Any:
        """The trace function: an event at another line means that the statement is done."""
        statement = self.running
        if event == "exception":
            self.running = None
        elif event == "return":
            if statement is not None:
                self.finish(frame, statement, returned=arg)
            self.settle(frame)
        elif event == "line":
            if statement is not None and not statement.first <= frame.f_lineno <= statement.last:
                self.finish(frame, statement)
            self.running = self.statements.get(frame.f_lineno)
        return self.follow

    def finish(self, frame: FrameType, statement: Statement, returned: Any = None) -> None:
        """Compare what the statement assigned or returned with its comment."""
        if statement.names is None:
            values = dict(enumerate(returned)) if type(returned) is tuple else {"": returned}
            labels = [f"return value {key}".strip() for key in values]
        else:
            values = {name: frame.f_locals.get(name) for name in statement.names}
            labels = list(values)
        shapes = statement.shapes
        if len(shapes) == 1:
            shapes = shapes * len(values)
        where = f"{Path(frame.f_code.co_filename).name}:{statement.first}"
        for label, value, shape in zip(labels, values.values(), shapes, strict=False):
            if isinstance(value, Tensor):
                self.trace.compared += 1
                self.trace.seen.add((frame.f_code.co_filename, statement.first))
                self.compare(frame, f"{where}: {label}", tuple(value.shape), shape)

    def compare(self, frame: FrameType, what: str, sizes: tuple[int, ...], shape: Shape) -> None:
        """One tensor with one shape: the letters it binds, or a problem."""
        written = f"({', '.join(shape)})"
        if "..." in shape:
            at = shape.index("...")
            after = len(shape) - at - 1
            shape = shape[:at] + shape[at + 1 :]
            sizes = sizes[:at] + sizes[len(sizes) - after :]
        known = {k: v for k, v in frame.f_locals.items() if type(v) is int} | self.letters
        if len(sizes) != len(shape):
            self.trace.problems.append(f"{what} is {sizes}, but its comment says {written}")
            return
        for size, text in zip(sizes, shape, strict=True):
            if text == "_":
                continue
            value = evaluate(text, known)
            if value is None and text.isidentifier():
                self.letters[text] = known[text] = size
            elif value is None:
                self.waiting.append((text, size, what))
            elif value != size:
                self.trace.problems.append(
                    f"{what} is {sizes}, but its comment says {written} with "
                    f"{_relevant(shape, known)}"
                )
                return
            elif text.isidentifier():
                self.letters[text] = size

    def settle(self, frame: FrameType) -> None:
        """At the end of the call, compare the expressions whose letters came later."""
        known = {k: v for k, v in frame.f_locals.items() if type(v) is int} | self.letters
        for text, size, what in self.waiting:
            value = evaluate(text, known)
            if value is not None and value != size:
                self.trace.problems.append(
                    f"{what} has an axis of {size}, but its comment says {text} with "
                    f"{_relevant((text,), known)}"
                )


def evaluate(text: str, known: dict[str, int]) -> float | None:
    """The value of a size such as `h·d` or `n / 2`; None while a letter is unknown."""
    expression = _expression(text)
    try:
        return None if expression is None else _value(expression, known)
    except (KeyError, ZeroDivisionError):
        return None


def _expression(text: str) -> ast.expr | None:
    """The size as Python would write it: `h·d` is `h*d`, `2n` is `2*n`."""
    spelled = re.sub(r"(?<=\d)\s*(?=[A-Za-z(])", "*", text.replace("·", "*").replace("×", "*"))
    try:
        return ast.parse(spelled, mode="eval").body
    except SyntaxError:
        return None


_OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Pow: lambda a, b: a**b,
}


def _value(node: ast.expr, known: dict[str, int]) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left, known), _value(node.right, known))
    raise KeyError(ast.dump(node))


def _comments(source: str) -> dict[int, tuple[Shape, ...]]:
    """Shapes by line, for trailing comments made of nothing but tuples."""
    found = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ").rstrip()
        if token.type == tokenize.COMMENT and re.fullmatch(r"\(.*\)", text):
            shapes = _read_shapes(text)
            if shapes and token.line[: token.start[1]].strip():
                found[token.start[0]] = shapes
    return found


def _read_shapes(text: str) -> tuple[Shape, ...] | None:
    """`(b, n), (b, h·d)` -> (("b", "n"), ("b", "h·d")); None if it is something else."""
    depth, parts, shapes, start = 0, [], [], 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "(" and depth == 1:
            parts, start = [], at + 1
        elif (letter == "," and depth == 1) or (letter == ")" and depth == 0):
            parts.append(text[start:at].strip())
            start = at + 1
            if letter == ")":
                shapes.append(tuple(part for part in parts if part))
        elif depth == 0 and letter not in ", ":
            return None
    readable = all(_expression(part) is not None for shape in shapes for part in shape)
    return tuple(shapes) if readable and depth == 0 and shapes else None


def _names(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return) -> tuple[str, ...] | None:
    if isinstance(node, ast.Return):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names: list[str] = []
    for target in targets:
        members = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        names += [member.id for member in members if isinstance(member, ast.Name)]
    return tuple(names)


def _relevant(shape: Shape, known: dict[str, int]) -> dict[str, int]:
    used = set(re.findall(r"[A-Za-z_]\w*", " ".join(shape)))
    return {name: size for name, size in known.items() if name in used}
