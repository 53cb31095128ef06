"""ListOps: the operators, the published rules and statistics, the splits, the files."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from weft.arena.tasks import TASKS, ListOps
from weft.arena.tasks.listops.trees import CHUNK, OPERATORS, TOKENS, Rules, chunk, evaluate
from weft.errors import WeftError

PUBLISHED = Rules(depth=10, arguments=10, shortest=500, length=2000)
SMALL = "listops(length=64, depth=5, arguments=4, train=200, valid=50, test=100)"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 1 9 3 ]", 3),
        ("[MED 1 4 ]", 2),
        ("[MED 0 1 8 9 ]", 4),
        ("[SM 7 8 9 ]", 4),
        ("[SM 5 5 ]", 0),
        ("[MAX 4 [SM 7 8 ] 0 [MED 1 9 3 6 ] ]", 5),
        ("[FIRST 6 1 ]", 6),
        ("[LAST [MIN 3 2 ] [SM 9 9 ] ]", 8),
    ],
)
def test_operators(text, value):
    assert evaluate(text.split()) == value


@pytest.mark.parametrize(
    "text", ["", "]", "[MIN ]", "[MIN 1 2", "1 2", "[AVG 1 ]", "[MIN 12 ]", "²"]
)
def test_what_is_no_expression(text):
    with pytest.raises(WeftError, match="expression"):
        evaluate(text.split())


def nested(tokens):
    """A tree as nested lists, by recursive descent: an independent reading of the tokens."""
    token = tokens.pop(0)
    if token.isdigit():
        return int(token)
    assert token in [f"[{name}" for name in OPERATORS]
    node = [token[1:]]
    while tokens[0] != "]":
        node.append(nested(tokens))
    tokens.pop(0)
    return node


def levels(tree):
    return 1 if isinstance(tree, int) else 1 + max(map(levels, tree[1:]))


def widths(tree):
    return set() if isinstance(tree, int) else {len(tree) - 1}.union(*map(widths, tree[1:]))


def expressions(trees):
    places = np.cumsum(trees.lengths)[:-1]
    return [[TOKENS[t] for t in row] for row in np.split(trees.tokens, places)]


def check_trees(trees, rules):
    """What the rules say of every kept tree; returns the trees."""
    found = []
    for words, value in zip(expressions(trees), trees.values, strict=True):
        assert rules.shortest < len(words) < rules.length
        rest = list(words)
        tree = nested(rest)
        assert not rest
        assert levels(tree) <= rules.depth
        assert all(2 <= width <= rules.arguments for width in widths(tree))
        assert evaluate(words) == value
        found.append(tree)
    return found


@pytest.mark.parametrize(
    "rules",
    [
        PUBLISHED,
        Rules(depth=4, arguments=3, shortest=6, length=30),
        Rules(depth=6, arguments=10, shortest=1, length=40),
        Rules(depth=2, arguments=2, shortest=3, length=5),
    ],
    ids=str,
)
def test_trees_follow_the_rules(rules):
    assert check_trees(chunk(rules, 0, 0), rules)


def broken_value(trees):
    trees.values[3] = (trees.values[3] + 1) % 10


def broken_token(trees):
    trees.tokens[np.flatnonzero(trees.tokens == 14)[5]] = 0


@pytest.mark.parametrize("spoil", [broken_value, broken_token])
def test_the_check_of_trees_bites(spoil):
    rules = Rules(depth=4, arguments=3, shortest=6, length=30)
    trees = chunk(rules, 0, 0)
    spoil(trees)
    with pytest.raises((AssertionError, IndexError, WeftError)):
        check_trees(trees, rules)


@pytest.mark.parametrize(
    "other", [dict(depth=5), dict(arguments=4), dict(shortest=4), dict(length=31)], ids=str
)
def test_the_check_knows_other_rules(other):
    rules = dict(depth=4, arguments=3, shortest=6, length=30)
    with pytest.raises(AssertionError):
        check_trees(chunk(Rules(**{**rules, **other}), 0, 0), Rules(**rules))


def test_all_choices_are_equally_likely():
    """Of depth 2 everything is known: operators 1/4, names, counts and digits uniform."""
    rules = Rules(depth=2, arguments=10, shortest=1, length=20)
    names, counts, digits = np.zeros(4), np.zeros(11), np.zeros(10)
    chunks = 10
    for number in range(chunks):
        for name, *values in check_trees(chunk(rules, 3, number), rules):
            names[OPERATORS.index(name)] += 1
            counts[len(values)] += 1
            np.add.at(digits, values, 1)
    drawn = chunks * CHUNK
    assert abs(names.sum() / drawn - 0.25) < 5 * (0.25 * 0.75 / drawn) ** 0.5
    for seen in (names, counts[2:], digits):
        expected = seen.sum() / len(seen)
        # Chi squared of 3, 8 and 9 degrees of freedom passes 40 once in 100,000 times, at most.
        assert ((seen - expected) ** 2 / expected).sum() < 40


@pytest.fixture(scope="module")
def published():
    """Trees of ten chunks with the published rules."""
    found = [chunk(PUBLISHED, 0, number) for number in range(10)]
    roots = [trees.tokens[np.cumsum(trees.lengths) - trees.lengths] for trees in found]
    lengths, values = (
        np.concatenate([getattr(trees, name) for trees in found]) for name in ("lengths", "values")
    )
    return lengths, values, np.concatenate(roots)


def test_published_statistics(published):
    """Shares were measured by others on 6,000 kept trees; acceptance and mean length come from a
    recursive simulation of 3,000,000 trees. Bounds are about four standard deviations."""
    lengths, values, roots = published
    assert abs(len(lengths) / (10 * CHUNK) - 0.0825) < 0.0055
    assert abs(lengths.mean() - 1034.5) < 26
    assert abs(np.median(lengths) - 961) < 50
    assert abs(np.quantile(lengths, 0.95) - 1798) < 50
    shares = np.bincount(values, minlength=10) / len(values)
    assert abs(shares[[0, 9]] - 0.17).max() < 0.03
    assert (shares[1:9] > 0.055).all()
    assert (shares[1:9] < 0.11).all()
    best = sum(np.bincount(values[roots == root]).max() for root in range(10, 14))
    assert abs(best / len(values) - 0.368) < 0.035


def test_every_published_tree_is_as_deep_as_can_be():
    trees = chunk(PUBLISHED, 0, 0)
    assert {levels(nested(words)) for words in expressions(trees)} == {10}


def rows_of(examples):
    return [examples.rows[i].tobytes() for i in range(len(examples))]


def test_splits_are_disjoint_and_as_large_as_said():
    task = TASKS.parse(SMALL)
    splits = {name: task.load(name) for name in ("train", "valid", "test")}
    assert [len(split) for split in splits.values()] == [200, 50, 100]
    every = [row for split in splits.values() for row in rows_of(split)]
    assert len(set(every)) == 350
    for split in splits.values():
        for row, label, group in zip(rows_of(split), split.labels, split.groups, strict=True):
            words = [TOKENS[token] for token in row]
            assert evaluate(words) == label
            assert words[0] == f"[{split.group_names[group]}"
            assert 16 < len(words) < 64


def test_the_test_set_does_not_depend_on_the_training_set():
    few, many = (TASKS.parse(SMALL.replace("train=200", f"train={n}")) for n in (10, 300))
    assert rows_of(few.load("test")) == rows_of(many.load("test"))
    assert rows_of(few.load("train")) == rows_of(many.load("train"))[:10]


def test_seeds_differ():
    one, two = (TASKS.parse(SMALL.replace("test=100", f"test=100, seed={s}")) for s in (0, 1))
    assert not set(rows_of(one.load("train"))) & set(rows_of(two.load("train")))


def test_baselines_by_hand(tmp_path):
    write(tmp_path, "train", ["[MIN 0 1 ]", "[MIN 0 2 ]", "[MIN 3 4 ]", "[MAX 9 1 ]", "[SM 3 4 ]"])
    write(tmp_path, "valid", ["[MIN 0 1 ]"])
    write(tmp_path, "test", ["[MIN 5 0 ]", "[MAX 1 9 ]", "[MAX 1 2 ]", "[SM 1 1 ]"])
    found = ListOps(folder=str(tmp_path)).baselines()
    assert found == {"majority class": 0.25, "root operator alone": 0.5}


def write(folder, split, texts):
    with (folder / f"{split}.jsonl").open("w") as file:
        for text in texts:
            file.write(json.dumps({"text": text, "label": evaluate(text.split())}) + "\n")


def test_the_published_files_are_read(tmp_path):
    lines = [
        "Source\tTarget",
        "( ( ( [MAX 2 ) 9 ) ] )\t9",
        "( ( ( [SM ( ( ( [MIN 4 ) 6 ) ] ) ) 8 ) ] )\t2",
    ]
    for name in ("basic_train.tsv", "basic_val.tsv", "basic_test.tsv"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    task = ListOps(folder=str(tmp_path))
    for split in ("train", "valid", "test"):
        found = task.load(split)
        assert [task.show(found.rows[i]) for i in range(2)] == ["[MAX 2 9 ]", "[SM [MIN 4 6 ] 8 ]"]
        assert found.labels.tolist() == [9, 2]
    assert task.source == f"ListOps, files of the folder {tmp_path.name!r}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[MAX 2 9 ]\t8", "comes to 9, its label says 8"),
        ("[MAX 2 9\t9", "left open"),
        ("[AVG 2 9 ]\t5", "got ['[AVG']"),
        ("4\t4", "an operator first"),
        ("[MAX 2 9 ]\tnine", "a label is 0 to 9; got 'nine'"),
        ("[MAX 2 9 ]", "needs 2 columns"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, reason):
    (tmp_path / "basic_test.tsv").write_text(f"Source\tTarget\n[MAX 2 9 ]\t9\n{line}\n")
    with pytest.raises(WeftError) as caught:
        ListOps(folder=str(tmp_path)).load("test")
    assert f"{tmp_path / 'basic_test.tsv'}, line 3: " in str(caught.value)
    assert reason in str(caught.value)


def test_a_changed_file_is_read_again(tmp_path):
    write(tmp_path, "test", ["[MIN 5 0 ]"])
    task = ListOps(folder=str(tmp_path))
    assert len(task.load("test")) == 1
    write(tmp_path, "test", ["[MIN 5 0 ]", "[MAX 1 9 ]"])
    assert len(task.load("test")) == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (dict(depth=1), "2 levels or more"),
        (dict(arguments=1), "2 arguments or more"),
        (dict(shortest=2000), "more than shortest and fewer than length"),
        (dict(test=0), "at least one tree"),
        (dict(folder="/nowhere/at/all"), "basic_train.tsv"),
        (dict(length=6, shortest=3, arguments=2, train=500), "hardly allow more than the 400"),
        (dict(depth=3), "raise depth or arguments"),
        (dict(seed=-1), "a seed is 0 or more"),
    ],
    ids=str,
)
def test_wrong_settings(settings, reason):
    with pytest.raises(WeftError, match=reason):
        ListOps(**settings).load("test")


@pytest.mark.long
def test_all_original_expressions():
    """The test sets of the original paper, four times 10,000."""
    folder = Path(os.environ.get("WEFT_DATA", "")) / "listops"
    if not os.environ.get("WEFT_DATA") or not folder.is_dir():
        pytest.skip("needs the original test sets as jsonl files in $WEFT_DATA/listops")
    total = 0
    for path in sorted(folder.glob("test_d*.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            assert evaluate(row["text"].split()) == row["label"], (path.name, row)
            total += 1
    assert total == 40_000


@pytest.mark.long
def test_the_published_task():
    task = ListOps()
    train, test = task.load("train"), task.load("test")
    assert (len(train), len(task.load("valid")), len(test)) == (96_000, 2_000, 2_000)
    assert len(set(rows_of(train)) | set(rows_of(test))) == 98_000
    assert abs(train.rows.lengths.mean() - 1034.5) < 5
    found = task.baselines()
    assert abs(found["root operator alone"] - 0.368) < 0.04
    assert abs(found["majority class"] - 0.17) < 0.03
