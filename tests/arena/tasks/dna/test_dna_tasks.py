"""Tasks on DNA: files and tables to tokens and splits; what is wrong is said with the record."""

import json

import numpy as np
import pytest

from weft.arena.tasks import TASKS
from weft.arena.tasks.dna.long_promoters import LongPromoters
from weft.arena.tasks.dna.sequences import Dna
from weft.errors import WeftError

OTHER = str.maketrans("ACGT", "TGCA")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def made(count, seed=0, n=30):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list("ACGT"), n)) for _ in range(count)]


def fasta(path, sequences):
    path.write_text("".join(f">{i}\n{each}\n" for i, each in enumerate(sequences)))
    return str(path)


def table(path, rows, header="sequence,label,part"):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]))
    return str(path)


def test_a_file_for_each_class(tmp_path):
    files = [fasta(tmp_path / f"{name}.fa", made(20, seed)) for seed, name in enumerate("ab")]
    task = Dna(data=tuple(files), k=3)
    assert (task.labels, task.classes, task.vocab, task.length) == (("a", "b"), 2, 65, 28)
    sizes = {split: len(task.load(split)) for split in ("train", "valid", "test")}
    assert sizes == {"train": 28, "valid": 4, "test": 8}
    train = task.load("train")
    shown = [task.show(row) for row in train.rows]
    assert set(shown) < {*made(20, 0), *made(20, 1)}
    assert all(
        (each in made(20, 1)) == label for each, label in zip(shown, train.labels, strict=True)
    )
    assert "share of G and C" in task.baselines()
    assert TASKS.parse(f"dna(data=['{files[0]}', '{files[1]}'])").k == 1


def test_both_strands_of_a_sequence_stay_together(tmp_path):
    own = made(40)
    other = [each[::-1].translate(OTHER) for each in own]
    path = table(
        tmp_path / "a.csv", [[each, "xy"[i % 2], ""] for i, each in enumerate(own + other)]
    )
    task = Dna(data=path)
    for split in ("train", "valid", "test"):
        shown = {task.show(row) for row in task.load(split).rows}
        assert {each[::-1].translate(OTHER) for each in shown} == shown


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([["ACGT", "x", "train"], ["TTTT", "y", "test"], ["ACGT", "x", "test"]], "line 4 is the "
         "same as a.csv, line 2"),
        ([["AACC", "x", "train"], ["GGTT", "y", "test"]], "line 3 .*its other strand"),
        ([["ACZT", "x", "train"]], "line 2: 'Z' at base 3"),
        ([["", "x", "train"]], "line 2 has no bases"),
        ([["ACGT", "", "train"]], "line 2: missing label"),
        ([["ACGT", "x", "later"], ["AAAA", "y", "test"]], "line 2: a split is train"),
        ([["ACGT", "x", "train"]], "two classes or more"),
        ([["ACGT", "x", "train"], ["AAAA", "y", "test"]], "the split valid has no sequences"),
    ],
)  # fmt: skip
def test_bad_tables_are_said_with_the_row(tmp_path, rows, message):
    path = table(tmp_path / "a.csv", rows)
    with pytest.raises(WeftError, match=message):
        Dna(data=path, split="part")


def promoter_rows(tmp_path, rows):
    folder = tmp_path / "promoters"
    folder.mkdir()
    names = ("organism", "kind", "label", "seq")
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    (folder / "promoters.jsonl").write_text("\n".join(lines))
    return str(folder)


def test_promoters_of_an_organism(tmp_path):
    rows = [("mouse", "nonprom", 0, each) for each in made(30, 0)]
    rows += [("mouse", "tata", 1, each) for each in made(20, 1)]
    rows += [("mouse", "nontata", 1, each) for each in made(20, 2)]
    rows += [("ecoli", "sigma70", 1, each) for each in made(20, 3)]
    folder = promoter_rows(tmp_path, rows)
    task = TASKS.parse(f"promoters(folder='{folder}', organism='mouse', kinds=['tata'])")
    sizes = [len(task.load(split)) for split in ("train", "valid", "test")]
    assert sizes == [35, 5, 10]
    assert sum(task.load(split).labels.sum() for split in ("train", "valid", "test")) == 20
    with pytest.raises(WeftError, match="no promoters of 'mose'; did you mean 'mouse'"):
        _ = TASKS.parse(f"promoters(folder='{folder}', organism='mose')").length
    with pytest.raises(WeftError, match="no promoters of the kind 'tat'"):
        _ = TASKS.parse(f"promoters(folder='{folder}', organism='mouse', kinds=['tat'])").length


def test_long_promoters_are_a_function_of_their_numbers():
    task = LongPromoters(bases=300, groups=2, train=6, valid=4, test=20, k=2, fresh=True)
    one, two = (task.load("train") for _ in range(2))
    assert (one.rows.tokens == two.rows.tokens).all()
    assert len(one.rows[0]) == task.length == 299
    source = task.stream(4)
    first = source.batch(0)
    assert first.x.shape == (4, 299)
    assert (first.x == task.stream(4).batch(0).x).all()
    assert not (first.x == source.batch(1).x).all()
    assert LongPromoters().stream(4) is None
    assert task.baselines()["the true probability"] > 0.9
    with pytest.raises(WeftError, match="a group needs"):
        LongPromoters(bases=300, groups=4)
