"""Imports point downwards, need little; folders are small; one name means one mechanism."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import weft
from weft.mixers import MIXERS

SOURCE = Path(weft.__file__).parent
ROOT = Path(__file__).resolve().parents[1]

# An import goes to a strictly lower number, or stays inside its own package.
LAYERS = [
    ["errors", "printable"],
    ["files"],
    ["spec", "plugins"],
    ["config"],
    ["registry", "rows", "environment", "metrics"],
    ["patterns", "events", "sound", "dna", "pictures"],
    ["kernels"],
    ["layers"],
    ["mixers", "feedforward"],
    ["generate"],  # below models: it needs their start and step only, and they offer `generate`
    ["models"],
    ["objectives", "native"],
    ["scale"],
    ["training"],
    ["arena"],
    ["serve", "report"],
    ["use"],
    ["interop"],  # a model card reads results, a conversion trains
    ["testing"],
    ["bench"],
    ["cli"],
    ["__main__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
OPTIONAL = ["typer", "rich", "matplotlib", "transformers", "pandas"]


def module_of(path: Path, source: Path = SOURCE) -> str:
    parts = ["weft", *path.relative_to(source).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.AST, module: str, is_package: bool, source: Path = SOURCE) -> set[str]:
    """The modules of weft that a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = module if is_package else module.rpartition(".")[0]
            for _ in range(node.level - 1):
                package = package.rpartition(".")[0]
            base = ".".join(filter(None, [package if node.level else "", node.module]))
            names = [f"{base}.{a.name}" for a in node.names if a.name != "__version__"]
            found |= {name if is_module(name, source) else base for name in names}
    return {name for name in found if name.split(".")[0] == "weft"}


def is_module(name: str, source: Path = SOURCE) -> bool:
    path = source.joinpath(*name.split(".")[1:])
    return name.startswith("weft.") and (path.with_suffix(".py").exists() or path.is_dir())


def registers(tree: ast.AST) -> set[str]:
    """Names under which a file registers mixers."""
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "register"
        and ast.unparse(node.func) == "MIXERS.register"
    }


def wrong_imports(source: Path) -> list[str]:
    """Every import of the tree that breaks a rule, as text."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
    mechanisms = {module_of(path, source) for path, tree in trees.items() if registers(tree)}
    found = []
    for path, tree in trees.items():
        module = module_of(path, source)
        if module == "weft":
            continue  # the public names, resolved when asked for
        for target in imports_of(tree, module, path.name == "__init__.py", source):
            if reason := breaks(module, target, path.name == "__init__.py", mechanisms):
                found.append(f"{module} imports {target}: {reason}")
    return found


def breaks(module: str, target: str, is_package: bool, mechanisms: set[str]) -> str | None:
    own, other = module.split(".")[1], target.split(".")[1] if "." in target else None
    if other is None:
        return None if own in ("cli", "__main__") else "import the module that defines the name"
    if own not in RANK or other not in RANK:
        return f"{own if own not in RANK else other} has no layer; add it to LAYERS"
    if own == other:
        if target in mechanisms and not is_package:
            return "mechanisms do not import each other; share a module that registers nothing"
        return None
    if own == "report" and RANK[other] > RANK["registry"]:
        return "a report reads result files only"
    return None if RANK[other] < RANK[own] else "not a lower layer"


def test_imports_point_downwards():
    assert wrong_imports(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("layers/a.py", "from weft.mixers.base import Frame", "not a lower layer"),
        ("layers/b.py", "def f():\n    import weft.models", "not a lower layer"),
        ("mixers/a.py", "from weft.feedforward import base", "not a lower layer"),
        ("mixers/c.py", "from .one import One", "do not import each other"),
        ("mixers/d.py", "from weft.mixers import one", "do not import each other"),
        ("models/a.py", "from weft import Sliding", "the module that defines"),
        ("generate/a.py", "from weft.models import stack", "not a lower layer"),
        ("report/a.py", "from weft.models import stack", "result files only"),
        ("training/a.py", "from weft.testing import contract", "not a lower layer"),
        ("testing/a.py", "from ..cli import main", "not a lower layer"),
        ("utils/a.py", "from weft.errors import WeftError", "has no layer"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, file, text, reason):
    tree = {
        "mixers/one.py": '@MIXERS.register("one")\nclass One: ...',
        "mixers/__init__.py": "from weft.mixers.one import One",
        "mixers/base/contract.py": "from weft.layers import norm",
        "models/ok.py": "from weft.mixers import One\nimport torch",
        file: text,
    }
    for name, content in tree.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (found,) = wrong_imports(tmp_path)
    assert reason in found


# A file there is an entry.
REGISTRIES = ["mixers", "feedforward", "arena/tasks"]
REGISTRIES += ["fixtures/v0_1_0/settings", "fixtures/v0_1_0/models"]


def crowded(source: Path, most: int = 20) -> dict[str, int]:
    """{folder: files in it} of the folders in which a reader meets too many files side by side."""
    counts = Counter(
        path.parent.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return {
        folder: count
        for folder, count in counts.items()
        if count > most and folder not in REGISTRIES
    }


@pytest.mark.parametrize("tree", [SOURCE, ROOT / "tests"])
def test_folders_are_small_rooms(tree):
    assert crowded(tree) == {}


def test_a_crowded_folder_is_found(tmp_path):
    for folder, count in [("models", 21), ("mixers", 21), ("models/stack", 20)]:
        (tmp_path / folder).mkdir(parents=True)
        for number in range(count):
            (tmp_path / folder / f"part_{number}.py").touch()
    assert crowded(tmp_path) == {"models": 21}


def fresh(program: str) -> subprocess.CompletedProcess:
    """Run a program in a new process that cannot import the optional packages."""
    block = f"import sys\nfor name in {OPTIONAL}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", block + program], capture_output=True, text=True)


def test_mixers_import_without_the_optional_packages():
    done = fresh("import weft, weft.mixers; print(len(weft.mixers.MIXERS))")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(MIXERS)


def test_the_block_blocks():
    assert "rich" in fresh("import rich").stderr


def test_weft_alone_does_not_load_torch():
    done = fresh("import weft; print('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stdout + done.stderr


def test_a_report_loads_no_models():
    if not (SOURCE / "report" / "__init__.py").exists():
        return
    done = fresh("import weft.report; print('weft.models' in sys.modules)")
    assert done.stdout.strip() == "False", done.stdout + done.stderr


MECHANISM_FILES = {
    name: path.stem
    for path in sorted((SOURCE / "mixers").glob("*.py"))
    for name in registers(ast.parse(path.read_text()))
}


def test_every_mechanism_file_is_registered():
    assert {name: name for name in MIXERS} == MECHANISM_FILES


@pytest.mark.parametrize("name", MIXERS)
def test_one_name_everywhere(name):
    assert MIXERS[name].__module__ == f"weft.mixers.{name}"
    assert MIXERS[name].name == name
    assert (ROOT / f"tests/mixers/test_{name}.py").exists(), f"{name} has no test file of its name"


@pytest.mark.parametrize("name", MIXERS)
def test_every_mechanism_has_a_page(name):
    assert (ROOT / f"docs/mixers/{name}.md").exists(), f"{name} has no docs/mixers/{name}.md"


def test_no_test_or_page_without_a_mechanism():
    base = {path.stem for path in (SOURCE / "mixers" / "base").glob("*.py")}
    shared = {"layer"} | base | {f"{kind}_mixer" for kind in base}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests/mixers").glob("test_*.py")}
    pages = {path.stem for path in (ROOT / "docs/mixers").glob("*.md")} - {"index", "README"}
    assert tests <= set(MIXERS) | shared
    assert pages <= set(MIXERS)
