"""Calls that have no place in src: they run code from data, or hand text to a shell."""

import ast
from pathlib import Path

import pytest

import weft

SOURCE = Path(weft.__file__).parent
FORBIDDEN = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "pickle.load": "a pickle runs code",
    "pickle.loads": "a pickle runs code",
    "torch.load": "a pickle runs code; models are safetensors",
    "yaml.load": "may build any object",
    "marshal.loads": "trusts its input",
    "os.system": "hands text to a shell",
    "os.popen": "hands text to a shell",
    "tempfile.mktemp": "another process can take the name first",
    "urllib.request.urlopen": "weft reaches no network",
    "requests.get": "weft reaches no network",
}

# Calls that are meant, by file, each with the reason.
MEANT = {"use/tour.py": {"exec": "its own cells, which stand in the file as text to be shown"}}


def calls(tree):
    """(line, dotted name, keywords) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
            yield node.lineno, name, {k.arg: ast.unparse(k.value) for k in node.keywords}


def bad(text, meant=()):
    found = []
    for line, name, keywords in calls(ast.parse(text)):
        if name in FORBIDDEN and name not in meant:
            found.append(f"line {line}: {name} ({FORBIDDEN[name]})")
        if keywords.get("shell") == "True":
            found.append(f"line {line}: {name} with shell=True")
        if name == "torch.load" and keywords.get("weights_only") == "True":
            found.pop()  # a reader of tensors alone, which runs no code
        if keywords.get("allow_pickle", "False") != "False":
            found.append(f"line {line}: {name} with allow_pickle")
    return found


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_there_is_none(path):
    meant = MEANT.get(path.relative_to(SOURCE).as_posix(), {})
    assert bad(path.read_text(encoding="utf-8"), meant) == []


@pytest.mark.parametrize(
    "text",
    [
        "eval(text)",
        "x = [exec(t) for t in texts]",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "subprocess.run(command, shell=True)",
        "np.load(path, allow_pickle=True)",
        "def f():\n    return pickle.loads(data)",
    ],
)
def test_the_search_bites(text):
    assert len(bad(text)) == 1


def test_what_is_like_it_is_allowed():
    assert bad("torch.load(path, weights_only=True)") == []
    plain = "model.eval()\nast.literal_eval(t)\nnp.load(p, allow_pickle=False)\nexecute(x)"
    assert bad(plain) == []
