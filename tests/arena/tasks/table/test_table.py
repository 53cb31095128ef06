"""A user's table as a task: what is read, what is left out, what is said about it."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest
from table_files_made import KINDS, csv_text, json_text, write

from weft.arena.tasks.base import SPLITS, TASKS
from weft.arena.tasks.table.describe import describe
from weft.arena.tasks.table.task import Table, table_from_options
from weft.errors import WeftError

NAMES = ("id", "body", "stars")


def reviews(count=200, classes=5, seed=0):
    draw = random.Random(seed)
    return [
        (i, f"review {i} " + "ä" * draw.randrange(60), draw.randrange(1, classes + 1))
        for i in range(count)
    ]


def texts_of(task, split, second=False):
    examples = task.load(split)
    rows = examples.second if second else examples.rows
    return [bytes(rows[i]).decode() for i in range(len(rows))]


@pytest.fixture
def table(tmp_path):
    def make(rows=None, kind=".csv", names=NAMES, stem="rows", **settings):
        path = write(tmp_path, kind, names, rows or reviews(), stem)
        return Table(data=str(path), text="body", label="stars", **settings)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_the_format_does_not_matter(table, kind):
    task, plain = table(kind=kind), table(kind=".jsonl", stem="plain")
    assert (task.classes, task.class_names, task.length) == (5, tuple("12345"), plain.length)
    assert (task.kind, task.vocab, task.metric) == ("classify", 256, "accuracy")
    by_text = {body: str(stars) for _, body, stars in reviews()}
    for split in SPLITS:
        assert texts_of(task, split) == texts_of(plain, split)
        labels = [task.class_names[label] for label in task.load(split).labels]
        assert labels == [by_text[text] for text in texts_of(task, split)]
    everything = [text for split in SPLITS for text in texts_of(task, split)]
    assert sorted(everything) == sorted(by_text)


def test_a_task_is_its_spec(table):
    task = table()
    assert TASKS.parse(str(task)) == task
    assert "length=" in str(task)
    assert isinstance(TASKS["table"](), Table), "listing tasks needs no file"
    with pytest.raises(WeftError, match="read from your file"):
        TASKS["table"]().load("train")


def test_batches_hold_the_bytes(table):
    examples = table(length=12).load("train")
    batch = examples.batch(np.array([0, 1]))
    assert batch.x.shape[1] <= 12
    assert bytes(batch.x[0].tolist()) == bytes(examples.rows[0])[:12]
    assert batch.y.tolist() == examples.labels[:2].tolist()
    assert table().show(examples.rows[0]) in {body for _, body, _ in reviews()}


def test_length_is_the_95th_percentile_rounded_up(table):
    sizes = sorted(len(body.encode()) for _, body, _ in reviews())
    task = table()
    assert task.length % 64 == 0
    share = sum(size <= task.length for size in sizes) / len(sizes)
    smaller = sum(size <= task.length - 64 for size in sizes) / len(sizes)
    assert smaller < 0.95 <= share
    assert table(length=100).length == 100


def test_pairs(tmp_path):
    rows = [(f"question {i}", f"answer {i % 50}", i % 2 == 0) for i in range(100)]
    path = write(tmp_path, ".jsonl", ("q", "a", "fits"), rows)
    task = table_from_options(str(path), "q", "fits", second="a")
    assert (task.kind, task.class_names) == ("match", ("false", "true"))
    train = texts_of(task, "train"), texts_of(task, "train", second=True)
    pairs = {(q, a): fits for q, a, fits in rows}
    for q, a, label in zip(*train, task.load("train").labels, strict=True):
        assert pairs[q, a] == bool(label)
    assert task.load("train").batch(np.arange(3)).second.shape[0] == 3


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([10, 9, 2], ("2", "9", "10")),
        (["10", "9", "2"], ("2", "9", "10")),
        ([0.5, 1.0, 10.0], ("0.5", "1", "10")),
        ([True, False], ("false", "true")),
        (["pos", " neg "], ("neg", "pos")),
        (["b", "10", "9"], ("10", "9", "b")),
    ],
    ids=repr,
)
def test_classes_in_order(table, labels, names):
    rows = [(i, f"text {i}", labels[i % len(labels)]) for i in range(60)]
    assert table(rows, kind=".jsonl").class_names == names


def test_labels_that_are_no_classes(table):
    numbers = [(i, f"text {i}", i % 200 * 0.37) for i in range(600)]
    with pytest.raises(WeftError, match=r"200 distinct values.*bin them first.*most_classes=200"):
        table(numbers).classes  # noqa: B018  # reading it raises
    texts = [(i, f"text {i}", f"free text {i}") for i in range(200)]
    with pytest.raises(WeftError, match="choose another column"):
        table(texts).classes  # noqa: B018  # reading it raises
    assert table(numbers, most_classes=200).classes == 200
    with pytest.raises(WeftError, match="every label is '1'"):
        table([(i, f"text {i}", 1) for i in range(50)]).classes  # noqa: B018  # reading it raises


BAD = [
    ("", 3, "missing text"),
    ("  \n ", 3, "missing text"),
    (None, 3, "missing text"),
    ("fine", None, "missing label"),
    ("fine", "  ", "missing label"),
    (["a"], 3, "got a list"),
    ("fine", {"a": 1}, "got a dict"),
    ("fine", float("nan"), "missing label"),
    ("lone \ud83d half", 3, "undecodable"),
    ("fine", "\udcff", "undecodable"),
]


@pytest.mark.parametrize(("body", "stars", "reason"), BAD, ids=range(len(BAD)))
def test_bad_rows_are_left_out_and_named(tmp_path, body, stars, reason):
    lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in reviews(40)]
    lines.insert(17, json.dumps({"body": body, "stars": stars}))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    task = Table(data=str(path), text="body", label="stars")
    (bad,) = task.prepared.bad
    assert (bad.file, bad.line) == ("rows.jsonl", 18)
    assert reason in bad.reason
    assert sum(len(task.load(split)) for split in SPLITS) == 40
    assert f"rows.jsonl, line 18: {bad.reason}" in describe(task)


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_undecodable_bytes_spoil_their_row_alone(tmp_path, kind):
    rows = [(i, f"café {i}", i % 2) for i in range(40)]
    text = csv_text(NAMES, rows) if kind == ".csv" else json_text(NAMES, rows)
    data = text.encode().replace("café 7".encode(), b"caf\xe9 7")
    path = tmp_path / f"rows{kind}"
    path.write_bytes(data)
    task = Table(data=str(path), text="body", label="stars")
    (bad,) = task.prepared.bad
    assert (bad.line, bad.reason) == (9 if kind == ".csv" else 8, "undecodable bytes in 'body'")
    assert path.read_bytes() == data


def test_too_many_bad_rows_are_refused_unless_asked(table):
    rows = [*reviews(80), *[(i, "", 1) for i in range(20)]]
    with pytest.raises(
        WeftError, match=r"(?s)20 of 100 rows.*20%.*line 82: missing text"
    ) as refused:
        table(rows)
    assert "and 10 more" in str(refused.value)
    task = table(rows, bad_share=0.2)
    assert task.prepared.total == 100
    assert "and 10 more" in describe(task)
    assert describe(task).count("missing text") == 10
    with pytest.raises(WeftError, match="100 of 100 rows"):
        table([(i, "", 1) for i in range(100)], bad_share=1.0)


def test_a_file_of_another_encoding_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(csv_text(NAMES, [(i, f"café {i}", i % 2) for i in range(40)]).encode("cp1252"))
    with pytest.raises(WeftError, match="give its encoding="):
        Table(data=str(path), text="body", label="stars")
    task = Table(data=str(path), text="body", label="stars", encoding="cp1252")
    assert all("café" in text for text in texts_of(task, "train"))


def test_a_split_column_is_obeyed(table):
    names = ("train", "Validation", "test")
    rows = [(*row, names[i % 3]) for i, row in enumerate(reviews(90))]
    task = table(rows, names=(*NAMES, "part"), split="part")
    for place, split in enumerate(SPLITS):
        assert texts_of(task, split) == [row[1] for row in rows[place::3]]
    assert "as given" in describe(task)


def test_a_split_that_is_not_given_comes_from_train(table):
    rows = [(*row, "test" if i % 4 == 0 else "train") for i, row in enumerate(reviews(200))]
    task = table(rows, names=(*NAMES, "part"), split="part")
    assert sorted(texts_of(task, "test")) == sorted(row[1] for row in rows[::4])
    assert len(task.load("valid")) == 15
    assert not set(texts_of(task, "valid")) & set(texts_of(task, "test"))
    assert "valid made from train" in describe(task)


def test_an_unknown_split_is_a_bad_row(table):
    rows = [(*row, ["train", "test", "valid"][i % 3]) for i, row in enumerate(reviews(60))]
    rows.append((60, "text", 1, "unsupervised"))
    task = table(rows, names=(*NAMES, "part"), split="part")
    (bad,) = task.prepared.bad
    assert "got 'unsupervised'" in bad.reason


def test_further_files(tmp_path):
    parts = {}
    for stem, rows in (("a1", reviews(60)), ("a2", reviews(60, seed=1)), ("late", reviews(30))):
        rows = [(i, f"{stem} {body}", stars) for i, body, stars in rows]
        parts[stem] = write(tmp_path, ".csv", NAMES, rows, stem), [row[1] for row in rows]
    task = table_from_options(
        str(tmp_path / "a*.csv"), "body", "stars", test_file=str(parts["late"][0]), valid_file=None
    )
    assert texts_of(task, "test") == parts["late"][1]
    rest = texts_of(task, "train") + texts_of(task, "valid")
    assert sorted(rest) == sorted(parts["a1"][1] + parts["a2"][1])
    with pytest.raises(WeftError, match="given twice"):
        table_from_options(
            str(tmp_path / "*.csv"), "body", "stars", test_file=str(parts["late"][0])
        )
    with pytest.raises(WeftError, match="no file matches"):
        table_from_options(str(tmp_path / "b*.csv"), "body", "stars")


def test_texts_in_two_given_splits_leave_the_earlier(table):
    rows = [(*row, ["train", "test", "valid"][i % 3]) for i, row in enumerate(reviews(90))]
    rows += [(100 + i, rows[3 * i + 1][1], 1, "train") for i in range(5)]  # test texts, in train
    names = (*NAMES, "part")
    task = table(rows, names=names, split="part")
    assert not set(texts_of(task, "train")) & set(texts_of(task, "test"))
    assert len(task.load("train")) == 30
    assert "5 rows left out of train or valid" in describe(task)
    kept = table(rows, names=names, split="part", keep_leaks=True)
    assert len(kept.load("train")) == 35
    assert "no text is in two splits" not in describe(kept)


def test_repeated_texts_stay_together_and_are_counted(table):
    rows = [(i, f"text {i % 100}", 1 + (i % 100) % 3) for i in range(300)]
    rows.append((300, "text 0", 2))
    task = table(rows)
    found = [set(texts_of(task, split)) for split in SPLITS]
    assert sum(map(len, found)) == 100
    assert "201 rows repeat the text of another; no text is in two splits" in describe(task)
    assert "1 texts have several labels" in describe(task)


def test_too_few_rows(table):
    with pytest.raises(WeftError, match="there is no row for"):
        table([(0, "a", 0), (1, "b", 1)])


def test_imbalance_is_pointed_out(table):
    even = [(i, f"text {i}", i % 4) for i in range(200)]
    assert "IMBALANCE" not in describe(table(even))
    most = [(i, f"text {i}", 0 if i % 10 < 7 else 1 + i % 3) for i in range(200)]
    shown = describe(table(most, stem="most"))
    assert "IMBALANCE  '0' is 70.0% of the rows, 2.8 times an even share of 25.0%" in shown
    two = [(i, f"text {i}", int(i % 10 == 0)) for i in range(200)]
    assert "IMBALANCE  '0' is 90.0%" in describe(table(two, stem="two"))


def test_many_numbers_as_classes_are_pointed_out(table):
    hint = "number=True (--number) predicts the number itself"
    prices = [(i, f"text {i}", i % 9 + 0.5) for i in range(200)]
    assert hint in describe(table(prices, stem="prices"))
    assert hint not in describe(table([(i, t, p % 5) for i, t, p in prices], stem="few"))
    named = [(i, text, f"shelf {price}") for i, text, price in prices]
    assert hint not in describe(table(named, stem="named"))
    assert hint not in describe(table(prices, stem="prices", number=True))


def test_description_counts(table):
    task = table(length=100)
    sizes = np.array([len(body.encode()) for _, body, _ in reviews()])
    shown = describe(task)
    assert "rows.csv: 200 rows, 200 of them usable" in shown
    cut = int((sizes > 100).sum())
    assert f"length   100: {cut} of 200 texts are cut ({cut / 200:.1%})" in shown
    assert f"mean {sizes.mean():,.0f}" in shown
    assert f"longest {sizes.max()}" in shown
    for stars in range(1, 6):
        count = sum(row[2] == stars for row in reviews())
        assert f"{stars}  {count:>8,}" in shown


def test_baselines(table):
    rows = [
        (i, "x" * (10 if i % 3 else 100) + str(i), "short" if i % 3 else "long") for i in range(90)
    ]
    found = table(rows).baselines()
    assert found["length of the text"] == 1.0
    assert found["majority class"] == pytest.approx(2 / 3, abs=0.1)


def test_a_changed_file_is_read_again_and_seen_in_the_source(table):
    task = table()
    before = task.source
    assert "rows.csv" in before
    assert "label stars" in before
    table(reviews(300))
    assert len(task.prepared.labels) == 300
    assert task.source != before


def test_tokenizer_files(table, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[UNK]": 0, "review": 1, "good": 2, "bad": 70_000}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(1)
    tokenizer.enable_padding(length=9)
    path = tmp_path / "words.json"
    tokenizer.save(str(path))
    rows = [(i, f"review {['good', 'bad'][i % 2]} {i}", i % 2) for i in range(60)]
    task = table(rows, tokens=str(path))
    assert task.vocab == 70_001
    for row, label in enumerate(task.load("train").labels):
        assert task.load("train").rows[row].tolist() == [1, 70_000 if label else 2, 0]
    assert task.show(np.array([1, 70_000])) == "review bad"
    with pytest.raises(WeftError, match="there is no"):
        table(rows, tokens="nowhere.json").load("train")
    path.write_text("{}")
    with pytest.raises(WeftError, match="is not a `tokenizers` JSON file"):
        table(rows, tokens=str(path)).load("train")


def test_a_text_without_tokens_is_a_bad_row(table, tmp_path):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Replace("...", "")
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "none.json"))
    rows = [*reviews(40), (40, "...", 1)]
    (bad,) = table(rows, tokens=str(tmp_path / "none.json")).prepared.bad
    assert (bad.line, bad.reason) == (42, "the text has no tokens")


def test_settings_are_checked():
    for wrong in ({"valid_share": 0.0}, {"test_share": 0.6}, {"bad_share": 2.0}, {"length": -1}):
        with pytest.raises(WeftError, match="got"):
            Table(**wrong)
    with pytest.raises(WeftError, match="table has no setting 'labels'; did you mean 'label'"):
        table_from_options("a.csv", "body", "stars", labels=1)


def test_optional_packages_are_optional(tmp_path):
    path = write(tmp_path, ".csv", NAMES, reviews())
    program = (
        "import sys\n"
        "for name in ('pyarrow', 'tokenizers', 'pandas'): sys.modules[name] = None\n"
        "from weft.arena.tasks import TASKS\n"
        f"task = TASKS.make('table', data={str(path)!r}, text='body', label='stars')\n"
        "print(len(task.load('train')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "160", done.stderr
