"""Seeded fuzzing of everything that weft reads: specs, patterns, settings, models, tables.

    python tests/campaigns/fuzzing.py --inputs 100000 --seed 1 [--target patterns ...]

An input is a valid one, changed a few times. The target may accept it or refuse it by a WeftError;
any other exception, a crash, more than SECONDS for one input or more than BYTES of memory is a
finding. A target runs in a process of its own, and the same seed gives the same inputs.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from readers import READERS, VALUES, Target, absent, changed_json

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

SECONDS, BYTES = 10, 2 * 2**30
NUMBERS = (b"0", b"-1", b"1e999", b"nan", b"1" * 400, b"2147483648", b"0.5", b"-0", b"1_0")
BRACKETS = (b"(", b")", b"[", b"]", b"{", b"}", b"~", b'"', b"'", b",", b"=", b"\\", b"\n")
ODD = (b"\x00", b"\xff\xfe", b"\x1b[31m", "²".encode(), "\u202e".encode(), b"\xf0\x9f", b"\r")


@dataclass
class Findings:
    """What came of a target."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    raw: Counter = field(default_factory=Counter)  # exceptions that are no WeftError, by place
    examples: dict = field(default_factory=dict)
    slowest: float = 0.0
    peak: int = 0


def mutated(draw: random.Random, target: Target) -> bytes:
    """A seed with one to six changes."""
    if target.shaped is not None and draw.random() < 0.5:
        return target.shaped(draw, draw.choice(target.seeds))
    data = bytearray(draw.choice(target.seeds))
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        at = draw.randrange(len(data) + 1)
        until = min(len(data), at + draw.choice((1, 1, 2, 4, 16, 64)))
        change = draw.randrange(8)
        if change == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif change == 1:
            del data[at:until]
        elif change == 2:
            data[at:at] = data[at:until] * draw.choice((1, 2, 50))
        elif change == 3:
            data[at:until] = draw.choice(NUMBERS)
        elif change == 4:
            data[at:at] = draw.choice(target.words or BRACKETS)
        elif change == 5:
            data[at:at] = draw.choice(BRACKETS) * draw.choice((1, 1, 2, 1500))
        elif change == 6:
            data[at:until] = draw.choice(ODD)
        else:
            other = draw.choice(target.seeds)
            data[at:] = other[draw.randrange(len(other) + 1) :]
    return bytes(data)


def changed_toml(draw: random.Random, seed: bytes) -> bytes:
    """TOML with the values of some lines replaced."""
    lines = seed.decode().splitlines()
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(lines))
        key = lines[at].partition("=")[0].strip() or "steps"
        value = copy.deepcopy(draw.choice(VALUES))
        text = "{}" if value == {} or isinstance(value, dict) else json.dumps(value)
        lines[at] = f"{key} = {text.replace('null', 'nan')}"
    return "\n".join(lines).encode()


def changed_spec(draw: random.Random, seed: bytes) -> bytes:
    """A spec whose arguments have other values."""
    name, _, inside = seed.decode().rstrip(")").partition("(")
    given = dict(part.partition("=")[::2] for part in inside.split(", ") if "=" in part)
    for _ in range(draw.choice((1, 2))):
        key = draw.choice([*given, "window", "rounds", "kinds", "width", "block"])
        value = draw.choice((*VALUES, "'a'", "full", "none", "causal & 3"))
        given[key] = value if isinstance(value, str) and len(value) < 30 else json.dumps(value)
    return f"{name}({', '.join(f'{k}={v}' for k, v in given.items())})".encode()


def fuzz(target: Target, inputs: int, seed: int) -> Findings:
    """Feed mutated inputs to a target."""
    found, draw = Findings(), random.Random(seed)
    signal.signal(signal.SIGALRM, _late)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(inputs):
        judge(found, target, mutated(draw, target))
    found.peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    if found.peak > BYTES:
        found.raw["more than 2 GiB"] += 1
    return found


def judge(found: Findings, target: Target, data: bytes) -> None:
    """Feed one input to a target, and count what came of it."""
    from weft.errors import WeftError

    began = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        target.read(data)
        found.accepted += 1
    except WeftError:
        found.refused += 1
    except Exception as error:
        place = f"{type(error).__name__} in {_place(error)}"
        found.raw[place] += 1
        found.examples.setdefault(place, data.decode("latin-1"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    found.inputs += 1
    found.slowest = max(found.slowest, time.perf_counter() - began)


def _late(number: int, frame: object) -> None:
    raise TimeoutError(f"over {SECONDS} s")


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code if trace is not None else None
    return f"{Path(code.co_filename).name}:{code.co_name}" if code is not None else "?"


def specs() -> Target:
    """Mechanisms and everything else that a spec string names."""
    from weft.mixers import MIXERS

    seeds = [name.encode() for name in MIXERS]
    seeds += [str(config).encode() for name in MIXERS for config in _variants(MIXERS[name])]
    words = [b"window=", b"none", b"true", b"full", b"=[1, 2]", b"'a'"]
    read = lambda data: MIXERS.parse(data.decode(errors="replace"))  # noqa: E731
    return Target(seeds, words, read, changed_spec)


def _variants(kind: type) -> Sequence[object]:
    from weft.testing import variants

    return variants(kind)


def patterns() -> Target:
    """Expressions, written, read and asked about a few pairs."""
    from weft.patterns import pattern
    from weft.patterns.derive import mask

    def read(data: bytes) -> None:
        made = pattern(data.decode(errors="replace"))
        assert pattern(str(made)) == made
        if not made.needs_length:
            mask(made, 6)

    seeds = [
        b"causal() & sliding(8)",
        b"sliding(4) | global(first=2) | keys(at=[3, 5])",
        b"~(strided(4) & dilated(5, 2)) | sink(3)",
        b"per_head(causal & sliding(window=3), ~(strided(stride=2) | sink))",
        b"blocked(sliding(2), 16) & random_blocks(2, 8, 1)",
        b"block_neighbours(8, 1, 0) | columns(8, 2) | axis(4, 'x')",
    ]
    words = [b" | ", b" & ", b"~", b"causal", b"sliding(3)", b"per_head(", b"full"]
    return Target(seeds, words, read)


def settings() -> Target:
    """Settings files in TOML."""
    from weft.arena.experiment import settings as read_from
    from weft.arena.experiment.settings import read_settings, recipes

    folder = Path(tempfile.mkdtemp())
    path = folder / "a.toml"
    shipped = Path(read_from.__file__).parents[1] / "recipes"
    seeds = [(shipped / f"{name}.toml").read_bytes() for name in recipes()]
    words = [b"[model]\n", b"[training]\n", b"steps = ", b"mixer = 'full'\n", b"[[phase]]\n"]

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_settings(path)

    return Target(seeds, words, read, changed_toml)


def _model_folder() -> Path:
    from weft.layers.embedding import Embedding
    from weft.mixers import Frame
    from weft.models import Classifier, Encoder, Stack, save

    stack = Stack(frame=Frame(dim=8, heads=2, length=16), order="sf", mixer="longformer(window=4)")
    trunk = Encoder(embedding=Embedding(vocab=11), stack=stack)
    folder = Path(tempfile.mkdtemp()) / "model"
    save(Classifier(trunk=trunk, classes=3).build(), folder)
    return folder


def _one_file_of_a_model(name: str, words: Sequence[bytes]) -> Target:
    from weft.models import load

    folder = _model_folder()
    whole = (folder / name).read_bytes()

    def read(data: bytes) -> None:
        (folder / name).write_bytes(data)
        load(folder)

    return Target([whole], words, read, changed_json if name.endswith("json") else None)


def model_configs() -> Target:
    """`config.json` of a saved model."""
    words = [b'"dim": ', b"null", b"[]", b"{}", b'"name": "full"', b"1e400", b"true"]
    return _one_file_of_a_model("config.json", words)


def safetensors() -> Target:
    """`model.safetensors` of a saved model."""
    words = [b'"dtype":"F32"', b'"shape":[', b'"data_offsets":[0,4]', struct.pack("<Q", 2**60)]
    return _one_file_of_a_model("model.safetensors", words)


def _native_folder() -> Path:
    from weft import native
    from weft.layers.embedding import Embedding
    from weft.mixers import Frame
    from weft.models import Decoder, LanguageModel, Stack

    stack = Stack(frame=Frame(dim=8, heads=2, length=16), order="sf", mixer="full")
    trunk = Decoder(embedding=Embedding(vocab=11), stack=stack)
    model = LanguageModel(trunk=trunk).build()
    return native.export(model, Path(tempfile.mkdtemp()) / "model")


def native_configs() -> Target:
    """`config.json` of a native model, which then decodes."""
    import torch

    from weft import native

    folder = _native_folder()
    whole = (folder / "config.json").read_bytes()

    def read(data: bytes) -> None:
        (folder / "config.json").write_bytes(data)
        native.load(folder).generate(torch.tensor([[1, 2]]), 2)

    words = [b'"vocab": ', b"null", b"[]", b'"rows": ', b'"dtype": "int8"']
    return Target([whole], words, read, changed_json)


def native_files() -> Target:
    """`model.weft` with a checksum that fits, which then decodes."""
    import numpy as np

    from weft.native import file
    from weft.native.model import NativeModel
    from weft.native.rebuilt import Description

    folder = _native_folder()
    description = Description.read(folder / "config.json")
    whole = (folder / "model.weft").read_bytes()
    tables = file.FileOffsets(list(description.stored), description.sublayers).tables

    def read(data: bytes) -> None:
        data = data if len(data) < tables else _sealed(data[:tables]) + data[tables:]
        size = min(len(data), len(whole))
        buffer = file.in_memory(max(size, 1))
        buffer[:size] = data[:size]
        NativeModel(description, buffer, size).start(1).feed([[1, 2, 3]])

    def _sealed(head: bytes) -> bytes:
        return head[:8] + struct.pack("<Q", file.checksum(head[16:])) + head[16:]

    words = [struct.pack("<I", n) for n in (0, 1, 3, 2**31 - 1, 2**31, 2**32 - 1)]
    words += [np.uint64(2**63).tobytes()]
    return Target([whole[:tables] + whole[tables:]], words, read)


def tables() -> Target:
    """CSV, JSON lines and Parquet, packed or not."""
    from weft.arena.tasks.table.files import read_table

    folder = Path(tempfile.mkdtemp())
    csv = b'body,stars\n"a, b",1\nplain,2\n"two\nlines",3\n' * 4
    lines = b'{"body": "a", "stars": 1}\n{"body": null, "stars": [2]}\n' * 4
    kinds = {b"C": ".csv", b"T": ".tsv", b"J": ".jsonl", b"G": ".csv.gz", b"P": ".parquet"}
    seeds = [b"C" + csv, b"T" + csv.replace(b",", b"\t"), b"J" + lines, b"G" + gzip.compress(csv)]
    try:
        import pyarrow
        from pyarrow import parquet

        columns = pyarrow.table({"body": ["a", "b"], "stars": [1, 2]})
        parquet.write_table(columns, folder / "seed.parquet")
        seeds.append(b"P" + (folder / "seed.parquet").read_bytes())
    except ImportError:
        pass

    def read(data: bytes) -> None:
        path = folder / f"a{kinds.get(data[:1], '.csv')}"
        path.write_bytes(data[1:])
        read_table(path, ["body", "stars"])

    return Target(seeds, [b'"', b",", b"body,stars\n", b"[", b"{"], read)


TARGETS: dict[str, Callable[[], Target]] = {
    "specs": specs,
    "patterns": patterns,
    "settings": settings,
    "model configs": model_configs,
    "safetensors": safetensors,
    "native configs": native_configs,
    "native files": native_files,
    "tables": tables,
    **READERS,
}


def in_child(name: str, inputs: int, seed: int, seconds: float = 3000) -> dict:
    """A target in a process of its own; a crash is a finding like any other."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", name]
    command += ["--inputs", str(inputs), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode:
        crash = f"status {done.returncode}: {done.stderr[-500:]}"
        return {"inputs": inputs, "accepted": 0, "refused": 0, "raw": {crash: 1}, "examples": {}}
    return json.loads(done.stdout.splitlines()[-1])


def line(name: str, found: dict) -> str:
    """The figures of a target, and an example of each finding."""
    count = sum(found["raw"].values())
    first = (
        f"{name}: {found['inputs']:,} inputs, {found['refused']:,} refused, "
        f"{found['accepted']:,} accepted, {count:,} findings; slowest "
        f"{found.get('slowest', 0):.2f} s, {found.get('peak', 0) / 2**20:,.0f} MiB"
    )
    rest = [
        f"    {times:,} × {place}, e.g. {found['examples'].get(place, '')[:300]!r}"
        for place, times in found["raw"].items()
    ]
    return "\n".join([first, *rest])


def main() -> int:
    """Run targets and print a line of figures for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(vars(fuzz(TARGETS[given.child](), given.inputs, given.seed))))
        return 0
    bad = 0
    for name, why in absent().items():
        print(f"left out: {name}, {why}", flush=True)
    for name in given.target or [name for name in TARGETS if name not in absent()]:
        found = in_child(name, given.inputs, given.seed)
        bad += sum(found["raw"].values())
        print(line(name, found), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
