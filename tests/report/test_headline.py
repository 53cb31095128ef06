"""The sentences say what the numbers say, and no more."""

import pytest
from run_folders import cell, failed, write_rows

from weft.report.page.headline import headline, listed, with_spread
from weft.report.read.run_folder import read_run
from weft.report.read.statistics import Estimate
from weft.report.read.summary import compare


def words(folder, rows):
    run = read_run(write_rows(folder, rows, with_metrics=False))
    blocks = headline(run, compare(run))
    found = [item for block in blocks for item in getattr(block, "items", [block])]
    texts = [f"{p.strong} {p.text}".strip() for p in found if hasattr(p, "text")]
    return " ".join(texts), blocks


def seeds(mixer, scores, speed=1.0, memory=1.0, **changed):
    return [
        cell(
            mixer,
            1024,
            seed,
            test_score=score,
            steps_per_second=10.0 * speed,
            peak_bytes=int(1e9 * memory),
            parameters=1000,
            **changed,
        )
        for seed, score in enumerate(scores)
    ]


def test_within_the_spread(tmp_path):
    rows = seeds("full", [0.43, 0.45, 0.44]) + seeds("bigbird", [0.42, 0.44, 0.43], 2.1, 0.4)
    text, _ = words(tmp_path, rows)
    assert "full has the best test accuracy: 0.440 ± 0.010 over 3 seeds." in text
    assert "bigbird (0.430 ± 0.010) is as good, within the spread of the seeds." in text
    assert "bigbird is the fastest of these: 2.1× as fast as dense with 0.40 of its memory." in text
    assert "every mechanism is better" in text


def test_clearly_behind(tmp_path):
    rows = seeds("full", [0.30, 0.31, 0.30]) + seeds("bigbird", [0.42, 0.44, 0.43], 0.5, 1.4)
    text, blocks = words(tmp_path, rows)
    assert "bigbird has the best" in text
    assert "The next, full (0.303 ± 0.006), is clearly behind." in text
    assert "bigbird is 0.5× as fast as dense with 1.40 of its memory." in text
    assert "as good" not in text
    assert [tile.title for tile in blocks[0].tiles] == ["best accuracy", "fastest", "least memory"]


def test_one_seed_promises_nothing(tmp_path):
    rows = seeds("full", [0.44]) + seeds("bigbird", [0.43], 2.0)
    text, _ = words(tmp_path, rows)
    assert "0.440 with one seed." in text
    assert "with one seed the spread of that is unknown" in text
    assert "clearly" not in text.replace("not clearly", "")


def test_the_price_of_the_fastest(tmp_path):
    rows = seeds("full", [0.43, 0.45, 0.44]) + seeds("fnet", [0.30, 0.31, 0.30], 4.4, 0.2)
    text, _ = words(tmp_path, rows)
    assert "Dense attention reaches the best score; nothing as good is faster." in text
    assert "fnet is the fastest of all, 4.4× as fast as dense with 0.20 of its memory" in text
    assert "(root operator) reaches 0.365: fnet is not clearly better than that." in text


def test_a_lead_within_the_spread_is_no_lead_over_a_rule(tmp_path):
    rows = seeds("full", [0.5, 0.51]) + seeds("fnet", [0.35, 0.40])  # the rule is at 0.365
    assert "fnet is not clearly better than that." in words(tmp_path, rows)[0]


def test_nothing_learned_comes_first(tmp_path):
    rows = seeds("full", [0.2, 0.21]) + seeds("fnet", [0.3, 0.31])
    text, _ = words(tmp_path, rows)
    assert text.startswith("Nothing was learned. The best trivial rule (root operator) reaches")
    assert text.count("trivial rule") == 1


def test_of_bits_fewer_are_better(tmp_path):
    rows = seeds("full", [1.5, 1.52], metric="bits per byte")
    rows += seeds("fnet", [1.2, 1.21], metric="bits per byte")
    folder = write_rows(tmp_path, rows, with_metrics=False)
    (folder / "baselines.json").write_text('{"order 0": 1.4}')
    run = read_run(folder)
    (_, points) = headline(run, compare(run))
    text = " ".join(f"{p.strong} {p.text}" for p in points.items)
    assert "fnet has the best test bits per byte: 1.205" in text
    assert "(order 0) reaches 1.400: full is not clearly better than that." in text


def test_dense_without_a_result(tmp_path):
    rows = [*seeds("fnet", [0.4, 0.41]), failed("full", 1024, 0, "out of memory", "too large")]
    text, _ = words(tmp_path, rows)
    assert "It is the only mechanism with a score." in text
    assert "Dense attention has no score at this length" in text
    assert "1 of 3 cells did not finish" in text


def test_parameters_that_differ_are_named(tmp_path):
    rows = seeds("full", [0.4, 0.41]) + seeds("fnet", [0.4, 0.41])
    rows[-1]["parameters"] = rows[-2]["parameters"] = 1300
    assert "more than 10 %: fnet (1.30×)." in words(tmp_path, rows)[0]


def test_nothing_yet(tmp_path):
    assert words(tmp_path / "a", [])[0] == "No result yet. No cell has finished."
    rows = [failed("full", 1024, seed, "failed", "a bug") for seed in range(2)]
    assert "2 cells ended without a score" in words(tmp_path / "b", rows)[0]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a and b"),
        (["a", "b", "c"], "a, b and c"),
        (list("abcdefgh"), "a, b, c, d, e and 3 more"),
    ],
    ids=len,
)
def test_lists(names, text):
    assert listed(names) == text


def test_numbers_with_their_spread():
    assert with_spread(Estimate(0.43149, 0.0102, 3)) == "0.431 ± 0.010"
    assert with_spread(Estimate(0.43149, None, 1)) == "0.431"
    assert with_spread(None) == "–"


def test_a_tie_is_called_a_tie(tmp_path):
    rows = [row for name in ("full", "bigbird", "fnet") for row in seeds(name, [0.44])]
    text, blocks = words(tmp_path, rows + seeds("reformer", [0.2]))
    assert "A tie. full, bigbird and fnet reach the same test accuracy: 0.440" in text
    assert "has the best" not in text
    assert blocks[0].tiles[0].note == "3 mechanisms tie"


def test_one_seed_on_few_rows_is_within_chance(tmp_path):
    rows = seeds("full", [0.44], test_rows=100) + seeds("bigbird", [0.40], test_rows=100)
    text, _ = words(tmp_path / "few", rows)
    assert "bigbird (0.400) is as good, within what chance does in 100 test rows." in text
    rows = [{**row, "test_rows": 100_000} for row in rows]
    text, _ = words(tmp_path / "many", rows)
    assert "is clearly behind" in text


def test_nothing_learned_says_why(tmp_path):
    rows = seeds("full", [0.37], steps=12, test_rows=100) + seeds("fnet", [0.35], steps=9)
    text, _ = words(tmp_path, rows)
    assert text.startswith("Nothing was learned. The best trivial rule (root operator)")
    assert "At most 12 updates were made: too few to learn" in text


def test_bits_fall(tmp_path):
    rows = seeds("full", [2.1]) + seeds("fnet", [2.4])
    rows = [{**row, "metric": "bits per byte"} for row in rows]
    text, _ = words(tmp_path, rows)
    assert "full has the best test bits per byte" in text
