"""The checks of tasks over those of weft that need no files, made small."""

from functools import partial

import pytest

from weft.arena.tasks import TASKS
from weft.testing import checks_for

# Each with the share of rows that chance repeats, where rows are short.
SMALL = {
    "listops(length=64, depth=5, arguments=4, train=200, valid=50, test=100)": 0.0,
    "key_value(pairs=8, symbols=32, values=16, train=200, valid=50, test=50)": 0.0,
    "key_value_uuid(pairs=2, train=60, valid=20, test=20)": 0.0,
    "transactions(length=64, train=40, valid=20, test=20)": 0.0,
    "long_promoters(bases=150, groups=1, train=40, valid=20, test=20)": 0.0,
    "reversal(length=8, train=300, valid=50, test=50)": 0.4,
}


def checks():
    for spec, shared in SMALL.items():
        for name, check in checks_for(TASKS.parse(spec)):
            given = partial(check, shared=shared) if name == "splits" else check
            yield pytest.param(given, id=f"{spec.partition('(')[0]}-{name}")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path_factory.getbasetemp() / "weft-cache"))


@pytest.mark.parametrize("check", list(checks()))
def test_contract(check):
    check()
