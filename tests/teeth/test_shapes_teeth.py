"""The shape tracer finds what is stale, and only that."""

import importlib.util
from pathlib import Path

import pytest
import torch

import weft.kernels.dense.reference
from weft.testing import checked_shapes
from weft.testing.shapes import evaluate, shape_comments


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(tmp_path, body: str, *args) -> list[str]:
    """What the tracer says of `def f(x, y): <body>` at these arguments."""
    path = tmp_path / "traced.py"
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    path.write_text(f"import torch\n\n\ndef f(x, y=None):\n{lines}")
    function = load(path).f
    with checked_shapes([path]) as trace:
        function(*args)
    assert trace.compared > 0 or not shape_comments(path.read_text())
    return trace.problems


X, Y = torch.zeros(2, 3, 8), torch.zeros(2, 5, 8)


def attend(module):
    q, k = torch.zeros(2, 4, 3, 8), torch.zeros(2, 4, 5, 8)
    mask = torch.ones(3, 5, dtype=torch.bool)
    module.dense_attention(q, k, k, mask=mask)


def test_a_spoiled_copy_is_found(tmp_path):
    source = Path(weft.kernels.dense.reference.__file__).read_text()
    commented = shape_comments(source).values()
    scores = next(one for one in commented if one.shapes == (("b", "h", "n", "m"),))
    lines = source.splitlines()
    lines[scores.last - 1] = lines[scores.last - 1].replace("(b, h, n, m)", "(b, h, n, n)")
    path = tmp_path / "spoiled.py"
    path.write_text("\n".join(lines))
    module = load(path)
    with checked_shapes([path]) as trace:
        attend(module)
    assert trace.problems[0] == (
        f"spoiled.py:{scores.first}: {scores.names[0]} is (2, 4, 3, 5), "
        "but its comment says (b, h, n, n) with {'b': 2, 'h': 4, 'n': 3}"
    )


def test_the_copy_as_it_is_passes(tmp_path):
    path = tmp_path / "sound.py"
    path.write_text(Path(weft.kernels.dense.reference.__file__).read_text())
    module = load(path)
    with checked_shapes([path]) as trace:
        attend(module)
    assert trace.compared > 2
    assert not trace.problems


@pytest.mark.parametrize(
    "body",
    [
        "a = x  # (b, n, d)\nb = y  # (b, m, d)",
        "a = x[..., :4]  # (b, n, d / 2)\nb = x  # (b, n, d)",
        "a = x  # (b, n, d)\nb = x.flatten(1)  # (b, n·d)",
        "a = x  # (b, n, d)\nb = torch.cat((x, y), 1)  # (b, n + 5, d)",
        "a = x  # (b, n, d)\nb = torch.cat((x, x), 1)  # (b, 2n, d)",
        "a, b = x, x  # (b, n, d)",
        "a, b = x, y  # (b, n, d), (b, m, d)",
        "a = x  # (..., d)\nb = y  # (b, ..., d)",
        "a = x  # (b, _, d)\nb = y  # (b, _, d)",
        "w = 3\na = x  # (b, w, d)",
        "a = torch.cat(\n    (x, x),\n    dim=1,\n)  # (b, 6, d)",
        "a = x  # (b, n, d), where d is even",
        "a = x  # (see the paper)",
        "a = x.sum()  # ()",
        "for _ in range(2):\n    a = x  # (b, n, d)\n    x = y.new_zeros(2, 3, 8)  # (b, n, d)",
        "return x  # (b, n, d)",
        "a = x  # (b, n, d)\nreturn x, y  # (b, n, d), (b, m, d)",
        "# (b, n)\na = x",
    ],
)
def test_true_or_unreadable_comments_pass(tmp_path, body):
    assert problems(tmp_path, body, X, Y) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("a = x  # (b, n, d)\nb = y  # (b, n, d)", "b is (2, 5, 8)"),
        ("a = x  # (b, n, d)\nb = x[..., :4]  # (b, n, d)", "with {'b': 2, 'n': 3, 'd': 8}"),
        ("a = x  # (b, n)", "a is (2, 3, 8), but its comment says (b, n)"),
        ("a = x[..., :3]  # (b, n, d / 2)\nb = x  # (b, n, d)", "an axis of 3"),
        ("a = x  # (b, n, d)\nb = x.flatten(1)  # (b, n·n)", "says (b, n·n)"),
        ("a = x  # (b, n, d)\nb = torch.cat((x, x), 1)  # (b, 3n, d)", "says (b, 3n, d)"),
        ("a, b = x, y  # (b, n, d)", "b is (2, 5, 8)"),
        ("a, b = x, y  # (b, n, d), (b, n, d)", "b is (2, 5, 8)"),
        ("a = x  # (..., d)\nb = y[..., :2]  # (b, ..., d)", "b is"),
        ("w = 4\na = x  # (b, w, d)", "with {'w': 4, 'b': 2}"),
        ("a = torch.cat(\n    (x, x),\n    dim=1,\n)  # (b, 7, d)", "says (b, 7, d)"),
        ("a = x.sum()  # (b)", "says (b)"),
        ("for x in (x, y):\n    a = x  # (b, n, d)", "a is (2, 5, 8)"),
        ("a = x  # (b, n, d)\nreturn y  # (b, n, d)", "return value is (2, 5, 8)"),
        ("return x, y  # (b, n, d), (b, n, d)", "return value 1 is"),
    ],
)
def test_stale_comments_are_found(tmp_path, body, message):
    (found, *_) = problems(tmp_path, body, X, Y)
    assert message in found


def test_each_call_binds_its_own_letters(tmp_path):
    path = tmp_path / "twice.py"
    path.write_text("def f(x):\n    a = x  # (b, n, d)\n    return a\n")
    function = load(path).f
    with checked_shapes([path]) as trace:
        function(X)
        function(Y)
    assert (trace.compared, trace.problems) == (2, [])


def test_an_exception_is_not_a_shape(tmp_path):
    path = tmp_path / "fails.py"
    path.write_text("def f(x):\n    a = x  # (b, n, d)\n    a = x @ x  # (b, n, n)\n    return a\n")
    function = load(path).f
    with checked_shapes([path]) as trace, pytest.raises(RuntimeError):
        function(X)
    assert trace.problems == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("n", 6), ("n / 2", 3), ("n / 4", 1.5), ("h·d", 12), ("2n + 1", 13), ("(n+d)*2", 20)],
)
def test_evaluate(text, value):
    assert evaluate(text, {"n": 6, "h": 3, "d": 4}) == value


def test_evaluate_waits_for_letters():
    assert evaluate("n / w", {"n": 6}) is None
    assert evaluate("ceil(n)", {"n": 6}) is None
