"""Tables say which tokens are global: a column in front of the text, or the ends of sentences."""

import random

import numpy as np
import pytest
import torch
from table_files_made import KINDS, write

from weft.arena.experiment.runs import objective_of, run_of, split_of
from weft.arena.experiment.settings import experiment
from weft.arena.tasks import TASKS
from weft.arena.tasks.table.describe import describe
from weft.arena.tasks.table.task import Table
from weft.models import load
from weft.models.usage.texts import global_spans
from weft.training import score, train

NAMES = ("question", "body", "stars")


def rows(count=60):
    """Questions with letters of one to four bytes, and texts of two or three sentences."""
    return [
        (f"Où {i}?" if i % 2 else f"🙂 {i}", f"Ein Satz. Noch {i}ér. " * (1 + i % 2), i % 3)
        for i in range(count)
    ]


def table(path, **settings):
    return Table(data=str(path), text="body", label="stars", length=80, **settings)


def texts(task):
    """The text, class and marks of every row of all splits, as they come in batches."""
    for split in ("train", "valid", "test"):
        examples = task.load(split)
        batch = examples.batch(np.arange(len(examples)))
        for row in range(len(examples)):
            real = slice(None) if batch.valid is None else batch.valid[row]
            yield batch.x[row][real], int(batch.y[row]), batch.marks["is_global"][row][real]


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_in_front_is_global(kind, tmp_path):
    if kind == ".parquet":
        pytest.importorskip("pyarrow", reason="comes with weft[data]")
    task = table(write(tmp_path, kind, NAMES, rows()), global_text="question")
    expected = {
        (f"{question}\n{body}".encode(), question.encode()): stars
        for question, body, stars in rows()
    }
    found = {}
    for ids, label, marks in texts(task):
        content, front = bytes(ids.tolist()), bytes(ids[marks].tolist())
        assert marks[: len(front)].all()  # and no others
        found[content, front] = int(task.class_names[label])
    assert found == expected


@pytest.mark.parametrize("asked", [None, "question"])
def test_the_ends_of_sentences_are_global(asked, tmp_path):
    path = write(tmp_path, ".csv", NAMES, rows())
    for ids, _, marks in texts(table(path, global_text=asked, global_after=". ")):
        text = bytes(ids.tolist()).decode()
        lead = len(text.split("\n")[0].encode()) if asked else 0
        ends = [i + 1 for i in range(len(ids)) if bytes(ids.tolist())[i : i + 2] == b". "]
        assert marks.nonzero()[:, 0].tolist() == [*range(lead), *ends]
        assert ends


def test_tokens_of_a_tokenizer_are_marked_by_the_characters_they_hold(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="comes with weft[data]")
    words = ["[UNK]", "Où", "?", "Ein", "Satz", ".", "Noch", "🙂"]
    vocab = {word: i for i, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    path = write(
        tmp_path, ".csv", NAMES, [("Où ?", f"Ein Satz. Noch x{i}.\n", i % 2) for i in range(40)]
    )
    task = table(
        path, global_text="question", global_after=".", tokens=str(tmp_path / "tokenizer.json")
    )
    for ids, _, marks in texts(task):
        assert [words[i] for i in ids] == ["Où", "?", "Ein", "Satz", ".", "Noch", "[UNK]", "."]
        assert marks.long().tolist() == [1, 1, 0, 0, 1, 0, 0, 1]


def test_characters_by_hand():
    assert global_spans("ab\nc. d. ", 2, ". ") == [(0, 2), (5, 6), (8, 9)]
    assert global_spans("a.b.", 0, "") == []
    assert global_spans("a....", 0, "..") == [(2, 3), (4, 5)]
    assert global_spans(".a.", 0, ".") == [(0, 1), (2, 3)]  # also at the very start
    assert global_spans("a. b. ", 3, ". ") == [(0, 3), (5, 6)]


def test_a_row_without_its_question_is_left_out_and_named(tmp_path):
    path = write(tmp_path, ".csv", NAMES, [*rows(), ("", "a text", 1)])
    found = table(path, global_text="question")
    assert len(found.prepared.labels) == 60
    assert "rows.csv, line 62: missing text in 'question'" in describe(found)


def test_the_task_says_what_is_global_and_reads_back(tmp_path):
    path = write(tmp_path, ".csv", NAMES, rows())
    task = table(path, global_text="question", global_after=". ")
    assert TASKS.parse(str(task)) == task
    assert "question and body as bytes" in task.source
    line = next(line for line in describe(task).splitlines() if line.startswith("global"))
    counts = [len(question.encode()) + body.count(". ") for question, body, _ in rows()]
    assert line == (
        "global   those of question and the last character of each '. ': mean "
        f"{np.mean(counts):.0f} tokens of a row, most {max(counts)}"
    )
    assert not any(line.startswith("global") for line in describe(table(path)).splitlines())


def test_without_either_nothing_is_marked(tmp_path):
    examples = table(write(tmp_path, ".csv", NAMES, rows())).load("train")
    assert not examples.marks
    assert not examples.batch(np.arange(4)).marks


def test_both_texts_of_a_pair_have_sentences(tmp_path):
    names = (*NAMES, "other")
    path = write(
        tmp_path, ".csv", names, [(*row, f"Eins. Zwei {i}. ") for i, row in enumerate(rows())]
    )
    task = table(path, second="other", global_text="question", global_after=". ")
    batch = task.load("train").batch(np.arange(5))
    assert batch.second_marks["is_global"].sum(1).tolist() == [2] * 5
    assert (batch.marks["is_global"].sum(1) > 2).all()


def asked_about(folder, count=3000):
    """Six letters with a digit each, and a letter that is asked for: the answer is its digit."""
    draw, made = random.Random(0), []
    for _ in range(count):
        digits = {letter: draw.choice("01") for letter in "abcdef"}
        order, question = draw.sample("abcdef", 6), draw.choice("abcdef")
        body = "".join(letter + digits[letter] for letter in order)
        made.append((question, body, f"{question}\n{body}", digits[question]))
    return write(folder, ".csv", ("question", "body", "both", "answer"), made)


@pytest.mark.long
@pytest.mark.parametrize("marked", [True, False])
def test_only_a_global_question_finds_its_answer(marked, tmp_path):
    """A window of two tokens: what is asked meets the letter it asks for only if it is global."""
    path = asked_about(tmp_path)
    columns = "text='body', global_text='question'" if marked else "text='both'"
    own = experiment(
        {
            "task": f"table(data='{path}', label='answer', {columns})",
            "mixer": "longformer(window=2, global_first=0)",
            "model": {"layers": 2, "dim": 32, "heads": 2, "pool": "first"},
            "training": {"steps": 400, "batch": 64, "lr": 3e-3, "warmup": 50, "device": "cpu"},
        }
    )
    outcome = train(run_of(own), tmp_path / "run")
    model = load(tmp_path / "run" / outcome.model)
    found = score(model, split_of(own, "test"), objective_of(None, "classify")).score
    assert found > 0.95 if marked else found < 0.6


def test_a_marked_batch_trains_a_classifier(tmp_path):
    """From the file to the gradient of the projections that only global tokens use."""
    own = experiment(
        {
            "task": f"table(data='{asked_about(tmp_path, 200)}', text='body', label='answer', "
            "global_text='question')",
            "mixer": "longformer(window=2, global_first=0)",
            "model": {"layers": 1, "dim": 16, "heads": 2},
            "training": {"steps": 1, "batch": 8, "device": "cpu"},
        }
    )
    stage = run_of(own).stages[0]
    model, batch = stage.model.build(), stage.source.batch(0)
    loss = stage.objective.loss(model, batch, torch.Generator())
    loss.total.backward()
    assert model.trunk.stack.running[0].body.to_q_global.weight.grad.abs().sum() > 0
