"""What else weft reads, to be fuzzed: events, sounds, sequences, models of Hugging Face, metrics.

Valid inputs of each and what reads them; `fuzzing.py` changes and judges.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """Valid inputs, words that mean something, and what reads an input."""

    seeds: Sequence[bytes]
    words: Sequence[bytes]
    read: Callable[[bytes], object]
    # A change that keeps the form, (draw, seed) -> input; taken half the time.
    shaped: Callable[[random.Random, bytes], bytes] | None = None


VALUES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 3, 0.5, -0.0, 1e308, 2**31, 2**63, -(2**80), 10**400),
    *("", "full", "x" * 5000, "\x1b[31m", "²", "none", "1", "longformer(window=", "\u202e"),
    *([], {}, [[]], [None], [0, -1], {"name": "full"}, {"name": 3}, {"": {}}, [[[[[[1]]]]]]),
)


def changed_json(draw: random.Random, seed: bytes) -> bytes:
    """JSON with some values, keys or parts of it replaced."""
    value = json.loads(seed)
    for _ in range(draw.choice((1, 1, 2, 4))):
        place, at = value, None
        while isinstance(place, dict | list) and place:
            inside, at = (
                place,
                draw.choice([*place] if isinstance(place, dict) else range(len(place))),
            )
            place = inside[at]
            if draw.random() < 0.25:
                break
        if at is None:
            return json.dumps(copy.deepcopy(draw.choice(VALUES))).encode()
        kind = draw.randrange(4)
        if kind == 0:
            del inside[at]
        elif kind == 1 and isinstance(inside, dict):
            inside[draw.choice(("mixer", "dim", "window", "nam", "", "name"))] = copy.deepcopy(
                draw.choice(VALUES)
            )
        else:
            inside[at] = copy.deepcopy(draw.choice(VALUES))
    return json.dumps(value).encode()


def events() -> Target:
    """Rows of clients over time, as CSV, packed or not, and Parquet, into a store."""
    import pyarrow
    from pyarrow import parquet

    from weft.events.columns import EventColumns
    from weft.events.store import build_store

    folder = Path(tempfile.mkdtemp())
    rows = [
        f"{'abc'[i % 3]},2024-0{1 + i % 7}-11,{['x', 'y', ''][i % 3]},{i * 0.75},{i % 2}"
        for i in range(24)
    ]
    csv = ("\n".join(["id,time,kind,amount,label", *rows]) + "\n").encode()
    numbered = csv.replace(b"2024-0", b"17000000")
    kinds = {b"C": ".csv", b"T": ".tsv", b"G": ".csv.gz", b"P": ".parquet"}
    seeds = [b"C" + csv, b"C" + numbered, b"T" + csv.replace(b",", b"\t")]
    columns = pyarrow.table(
        {"id": [1, 1, 2], "time": [1.0, 2.0, 3.0], "kind": ["x", None, "y"], "label": [0, 0, 1]}
    )
    parquet.write_table(columns, folder / "seed.parquet")
    seeds += [b"G" + gzip.compress(csv), b"P" + (folder / "seed.parquet").read_bytes()]

    def read(data: bytes) -> None:
        path = folder / f"a{kinds.get(data[:1], '.csv')}"
        path.write_bytes(data[1:])
        into = folder / "store"
        shutil.rmtree(into, ignore_errors=True)
        build_store([path], EventColumns(label="label"), into)

    words = [b"2024-02-30", b"9999-12-31", b"inf", b"nan", b"1e300", b"\n", b",,", b"a,"]
    return Target(seeds, words, read)


def sounds() -> Target:
    """Files of sounds: wav of each width, and flac where soundfile is installed."""
    import io
    import wave

    import numpy as np

    from weft.sound.files import read_sound

    folder = Path(tempfile.mkdtemp())
    noise = np.random.default_rng(0).integers(-9000, 9000, 120).astype("<i2")
    seeds = []
    for width, channels, rate in ((1, 1, 8000), (2, 1, 8000), (2, 2, 16000), (3, 1, 8000)):
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setparams((channels, width, rate, 0, "NONE", ""))
            file.writeframes(noise.tobytes()[: 240 // (width * channels) * width * channels])
        seeds.append(b"W" + buffer.getvalue())
    if importlib.util.find_spec("soundfile"):
        import soundfile

        soundfile.write(folder / "seed.flac", noise, 8000)
        seeds.append(b"F" + (folder / "seed.flac").read_bytes())

    def read(data: bytes) -> None:
        path = folder / ("a.flac" if data[:1] == b"F" else "a.wav")
        path.write_bytes(data[1:])
        read_sound(path, 8000, resample=True, mix=True)

    words = [
        b"RIFF",
        b"data",
        b"fmt ",
        *(struct.pack("<I", n) for n in (0, 1, 3, 2**31, 2**32 - 1)),
    ]
    return Target(seeds, words, read)


def sequences() -> Target:
    """FASTA, packed or not, as bases."""
    from weft.dna.bases import bases
    from weft.dna.fasta import read_fasta

    folder = Path(tempfile.mkdtemp())
    fasta = b">chr1 one\nACGTNNACGT\nacgtu\n\n; a word\n>chr2\nRYSWKM\n" * 2
    seeds = [b"A" + fasta, b"A" + fasta.replace(b"\n", b"\r\n"), b"G" + gzip.compress(fasta)]

    def read(data: bytes) -> None:
        path = folder / ("a.fa.gz" if data[:1] == b"G" else "a.fa")
        path.write_bytes(data[1:])
        for record in read_fasta(path):
            bases(record.sequence, record.where)

    return Target(seeds, [b">", b"\n", b";", b"N" * 40, b"\x1f\x8b"], read)


def _hf_folder() -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    given = BertConfig(vocab_size=11, intermediate_size=8, max_position_embeddings=16, **sizes)
    folder = Path(tempfile.mkdtemp()) / "model"
    BertForSequenceClassification(given).save_pretrained(folder)
    return folder


def _one_file_of_a_folder(name: str, words: Sequence[bytes]) -> Target:
    from weft.interop.hf.checkpoints.load import load

    folder = _hf_folder()
    whole = (folder / name).read_bytes()

    def read(data: bytes) -> None:
        (folder / name).write_bytes(data)
        load(folder)

    return Target([whole], words, read, changed_json if name.endswith("json") else None)


def foreign_configs() -> Target:
    """`config.json` of a model of Hugging Face."""
    words = [b'"hidden_size": ', b"null", b"[]", b'"model_type": "gpt2"', b"1e400", b"true"]
    return _one_file_of_a_folder("config.json", words)


def foreign_weights() -> Target:
    """`model.safetensors` of a model of Hugging Face."""
    words = [b'"dtype":"F32"', b'"shape":[', b'"data_offsets":[0,4]', struct.pack("<Q", 2**60)]
    return _one_file_of_a_folder("model.safetensors", words)


READERS: dict[str, Callable[[], Target]] = {
    "events": events,
    "sounds": sounds,
    "sequences": sequences,
    "foreign configs": foreign_configs,
    "foreign weights": foreign_weights,
}
# What a reader cannot do without.
NEEDS = {"events": "pyarrow", "foreign configs": "transformers", "foreign weights": "transformers"}


def absent() -> dict[str, str]:
    """The targets that this machine cannot run, and why."""
    return {
        name: f"{package} is not installed"
        for name, package in NEEDS.items()
        if importlib.util.find_spec(package) is None
    }
