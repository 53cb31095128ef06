"""Tables of Long Range Arena: what a cell says, how far it is from the paper, what is missing."""

import pytest

from weft.errors import WeftError
from weft.report.tables import lra

PAPER = {
    ("full", "listops"): 36.37,
    ("bigbird", "listops"): 36.05,
    ("reformer", "listops"): 37.27,
    ("full", "image"): 42.44,
    ("bigbird", "image"): 40.83,
    ("reformer", "image"): 38.07,
}
TASKS = ("listops", "image")
OVERFLOW = "NonFinite: training stopped: loss not finite at step 917 (lr 0.00145, clip None); more"


def row(label, task, score, status="done", reason=None):
    given = {"test_score": score, "status": status, "reason": reason}
    return {"label": label, "task": task, "length": 9, **given}


ROWS = [
    row("full", "listops", 0.3512),
    row("reformer", "listops", None, "failed", OVERFLOW),
    row("nsa", "image", 0.5),
    row("full", "image", 0.31),
    row("full", "image", 0.4),  # run again
    row("bigbird", "image", 0.301),
    row("reformer", "image", 0.39),
]


def test_cells_stand_beside_the_papers_and_say_why_they_have_no_score():
    rules = [{"task": "image", "rule": "majority class", "score": 0.1}]
    table = lra.accuracy_table(ROWS, rules, PAPER, {"listops": 2000, "image": 1024})
    assert table.header == ["mechanism", "listops, 2,000 tokens", "image, 1,024 tokens"]
    failed = "failed (training stopped: loss not finite at step 917)"
    assert table.cells == [
        ["`full`", "35.12 (36.37)", "40.00 (42.44)"],
        ["`bigbird`", "not run (36.05)", "30.10 (40.83)"],
        ["`reformer`", f"{failed} (37.27)", "39.00 (38.07)"],
        ["`nsa`", "not run", "50.00"],
        ["majority class", "–", "10.00"],
    ]


def test_agreement_is_the_mean_distance_and_the_correlation_of_ranks():
    table = lra.agreement_table(ROWS, PAPER, (*TASKS, "text"))
    distance = (42.44 - 40 + 40.83 - 30.1 + 39 - 38.07) / 3
    assert table.cells == [
        ["listops", "1", "1.25", "–"],
        ["image", "3", f"{distance:.2f}", "+0.50"],  # 3, 2, 1 against 3, 1, 2
        ["text", "0", "–", "–"],
    ]
    worse = [row("full", "image", 0.1), row("bigbird", "image", 0.2), row("reformer", "image", 0.3)]
    assert lra.agreement_table(worse, PAPER, ("image",)).cells[0][-1] == "−1.00"


def test_cells_far_from_the_paper_have_a_sentence_each():
    notes = {"image.bigbird": "One head."}
    table = lra.far_table(ROWS, PAPER, notes)
    assert table.cells == [["image", "`bigbird`", "30.10", "40.83", "−10.7", "One head."]]
    with pytest.raises(WeftError, match=r"without a note: \['image.bigbird'\]; .*need: \[\]"):
        lra.far_table(ROWS, PAPER, {})
    with pytest.raises(WeftError, match=r"noted without need: \['image.full'\]"):
        lra.far_table(ROWS, PAPER, notes | {"image.full": "Close by now."})


def test_cells_without_a_score_have_their_minutes():
    minutes = {"listops.bigbird": "2.4", "listops.reformer": "6 to 10"}
    table = lra.missing_table(ROWS, PAPER, TASKS, minutes)
    assert table.cells == [["listops", "`bigbird` 2.4, `reformer` 6 to 10"]]
    with pytest.raises(WeftError, match=r"listops\.reformer"):
        lra.missing_table(ROWS, PAPER, TASKS, {"listops.bigbird": "2.4"})
