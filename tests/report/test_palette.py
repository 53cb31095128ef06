"""Colours stand out from the ground by the rule of WCAG, and looks differ."""

import pytest

from weft.report.charts.palette import DARK, LIGHT, SERIES, looks, variables


def luminance(colour):
    """https://www.w3.org/TR/WCAG22/#dfn-relative-luminance"""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_rule_itself():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert contrast("#f0e442", LIGHT["card"]) < 3  # Okabe and Ito's yellow would not do


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(colours):
    for ground in (colours["card"], colours["ground"]):
        for name in ("ink", "soft", "accent", "warm"):
            assert contrast(colours[name], ground) >= 4.5, name
        for at in range(SERIES):
            assert contrast(colours[f"series{at}"], ground) >= 3, at


def test_both_themes_name_the_same_colours():
    assert list(LIGHT) == list(DARK)
    assert variables({"ink": "#000000"}) == "--ink:#000000;"


def test_thirty_mechanisms_look_different():
    names = [f"m{at}" for at in range(30)]
    found = looks(["full", *names], ["full"])
    assert found["full"].colour == "dense"
    assert len(set(found.values())) == 31
    # Without colours, the first eight have marks of their own.
    assert len({found[name].shape for name in names[:8]}) == 8
