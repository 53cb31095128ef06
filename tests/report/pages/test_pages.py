"""Each kind of page: what its titles, directions and sections say. The browser looks at them too.

Seen to fail: with "Up is better" written whatever the metric, bits per byte are praised for rising.
"""

import json
import re

import pytest
from every_page import LABELS, PAGES, classifier, comparison, decoding, language_model
from run_folders import cell, write_rows

from weft.errors import WeftError
from weft.report import write_report


def text_of(path):
    page = re.sub(r"<(style|script).*?</\1>", "", path.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.replace("<wbr>", "")))


@pytest.mark.parametrize("name", PAGES)
def test_titles_are_words(tmp_path, name):
    path = PAGES[name](tmp_path / "run")
    title = re.search(r"<title>(.*?)</title>", path.read_text())[1]
    assert "(" not in title
    assert "=" not in title
    assert title[0].isupper()


def test_no_page_calls_bits_better_when_they_rise(tmp_path):
    path = language_model(tmp_path / "one")
    rows = [cell(name, 512, 0, metric="bits per byte") for name in ("full", "fnet")]
    several = write_report(write_rows(tmp_path / "two", rows))
    for page in (path, several):
        for text in (text_of(page), page.with_suffix(".md").read_text()):
            assert "lower is better" in text.lower()
            assert "higher is better" not in text.lower()
            assert "up is better" not in text.lower()
    assert "Bits per byte: lower is better, so the axis is reversed" in text_of(several)


def test_a_training_shows_its_classes_and_what_it_is_held_against(tmp_path):
    text = text_of(classifier(tmp_path / "run"))
    assert "Satisfaction from body of reviews_of_the_last_quarter.csv: sliding_window" in text
    assert "majority class" in text
    assert "sample of 256 of 1,200 test rows" in text
    assert "Expected calibration error: sliding_window 0.090" in text
    assert "Macro F1 0.610" in text
    for label in LABELS:
        assert label in text
    assert "Confusions: true classes down" in text


def test_one_mechanism_is_no_lonely_circle(tmp_path):
    rows = [cell("full", 512, 0)]
    page = write_report(write_rows(tmp_path, rows)).read_text()
    assert 'id="trade-off"' not in page
    assert 'id="standing"' in page
    assert "majority class" in page


def test_classes_of_a_comparison(tmp_path):
    path = comparison(tmp_path / "run")
    text = text_of(path)
    assert "F1 of each class on the test split" in text
    assert "reformer: every class" in text
    assert "By class" in path.with_suffix(".md").read_text()


def test_what_circles_mean_lies_within_the_data(tmp_path):
    rows = [cell("full", 512, 0, peak_bytes=3 << 30), cell("fnet", 512, 0, peak_bytes=1 << 30)]
    text = text_of(write_report(write_rows(tmp_path, rows)))
    assert "area = peak memory, 1 GiB to 3 GiB" in text


def test_decoding(tmp_path):
    path = decoding(tmp_path)
    assert path == tmp_path / "decode.html"
    text = text_of(path)
    assert "most speed-up" in text
    assert "a ratio counts against the faster dense model" in text
    assert path.with_suffix(".md").is_file()
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"bench": "attention"}) + "\n")
    with pytest.raises(WeftError, match="no rows of `weft bench decode"):
        write_report(other)
