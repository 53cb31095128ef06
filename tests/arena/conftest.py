"""Tests of the arena keep what they cache to themselves."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path_factory.getbasetemp() / "weft-cache"))
