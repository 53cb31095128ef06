"""A small trained classifier, trained once, whose training data is gone."""

import shutil

import pytest
from small_reviews import fitted, reviews, write_lines


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a run, moved away from where it was trained."""
    home = tmp_path_factory.mktemp("trained")
    data = write_lines(home / "reviews.jsonl", reviews(200))
    fitted(str(data), home / "run")
    data.unlink()
    return shutil.move(home / "run", tmp_path_factory.mktemp("elsewhere") / "run")
