"""The page in a real browser: laptop and phone, light and dark, nothing sticks out or overlaps."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from every_page import PAGES
from run_folders import cell, full_run, write_rows

from weft.report import write_report
from weft.report.charts.palette import DARK, LIGHT

pytestmark = pytest.mark.long

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
LAPTOP, PHONE = (1300, 900), (390, 844)
LISTENING = """<script>window.pageErrors = [];
for (const kind of ["error", "unhandledrejection", "securitypolicyviolation"])
  addEventListener(kind, event => pageErrors.push(`${kind}: ${event.message || event.blockedURI}`));
console.error = console.warn = (...words) => pageErrors.push(words.join(" "));</script>"""
FRAME = """<!doctype html><body style="margin:0"><script>
onmessage = event => document.body.dataset.measured = event.data</script>
<iframe src="{name}" style="width:{width}px;height:{height}px;border:0"></iframe></body>"""
THEMES = {"light": ("--blink-settings=preferredColorScheme=1", LIGHT)}
THEMES["dark"] = ("--blink-settings=preferredColorScheme=0", DARK)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Runs the browser on a page; skips where there is none."""
    name = next(filter(None, map(shutil.which, BROWSERS)), None)
    if name is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    profile = tmp_path_factory.mktemp("profile")

    def run(page, size, theme, *options):
        command = [name, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        command += ["--virtual-time-budget=3000", THEMES[theme][0], *options, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report(full_run(tmp_path_factory.mktemp("run")))


def measured(browser, page, size, theme="light"):
    """What measure.js finds."""
    program = (Path(__file__).parent / "measure.js").read_text()
    inner, outer = page.with_name("inner.html"), page.with_name("outer.html")
    text = page.read_text().replace("</body>", f"<script>{program}</script></body>")
    inner.write_text(text.replace("<title>", f"{LISTENING}<title>", 1))
    # A window is never narrower than 500 pixels; a frame is as narrow as a phone.
    outer.write_text(FRAME.format(name=inner.name, width=size[0], height=size[1]))
    dump = browser(outer, LAPTOP, theme, "--dump-dom")
    found = re.search(r'data-measured="([^"]*)"', dump)
    assert found, f"the page did not run: {dump[:400]}"
    return json.loads(html.unescape(found[1]))


def check(found, size):
    assert found["width"] == size[0]
    assert found["scrolls"] <= size[0], f"the page scrolls sideways: {found['wider']}"
    assert found["wider"] == []
    assert found["overlaps"] == []
    assert found["errors"] == []
    assert found["outside"] == []
    assert found["letters"] >= 10.5, "letters of charts are too small to read"


def rgb(colour):
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("theme", THEMES)
def test_the_page_fits(browser, page, size, theme):
    found = measured(browser, page, size, theme)
    check(found, size)
    assert found["charts"] == 6
    assert found["pictures"] == 3
    assert found["button"]
    assert (found["ground"], found["ink"]) == tuple(
        rgb(THEMES[theme][1][name]) for name in ("ground", "ink")
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp("pages") / "run") for name, make in PAGES.items()}


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", PAGES)
def test_every_kind_of_page_fits(browser, pages, name, size, theme):
    found = measured(browser, pages[name], size, theme)
    check(found, size)
    assert found["charts"] >= 1
    assert found["ground"] == rgb(THEMES[theme][1]["ground"])


def test_an_error_of_a_page_is_seen(browser, page):
    broken = page.with_name("broken.html")
    broken.write_text(page.read_text().replace("</main>", "<script>nothing()</script></main>"))
    assert measured(browser, broken, LAPTOP)["errors"]


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_check_bites(browser, page, size):
    broken = page.with_name("broken.html")
    wide = '<div style="width:2000px">wide</div></main>'
    broken.write_text(page.read_text().replace("</main>", wide))
    with pytest.raises(AssertionError, match="scrolls sideways"):
        check(measured(browser, broken, size), size)
    same = re.sub(
        r'(<text x=")[\d.]+(" y=")[\d.]+(" class="label)', r"\g<1>90\g<2>90\3", page.read_text()
    )
    broken.write_text(same)
    assert measured(browser, broken, size)["overlaps"]


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_many_mechanisms_with_long_names(browser, tmp_path, size):
    names = [f"longformer(window={2**at}, global_first={at}, dilation=2)" for at in range(16)]
    rows = [
        cell(name, 512, seed, label=name, cell=f"cells/{at}-{seed}", test_score=0.3 + at % 5 / 50)
        for at, name in enumerate(["full", *names])
        for seed in range(2)
    ]
    found = measured(browser, write_report(write_rows(tmp_path, rows)), size)
    check(found, size)


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_a_report_without_results_fits_too(browser, tmp_path, size):
    (tmp_path / "grid.json").write_text("{}")
    found = measured(browser, write_report(tmp_path), size)
    assert found["scrolls"] <= size[0]
    assert found["charts"] == 0


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("theme", THEMES)
def test_screenshots_show_something(browser, page, tmp_path, size, theme):
    image = pytest.importorskip("PIL.Image", reason="looks at pixels")
    shot = tmp_path / "shot.png"
    browser(page, size, theme, f"--screenshot={shot}")
    with image.open(shot) as opened:
        assert opened.size == size
        shades = opened.convert("L").histogram()
    dark = sum(shades[:64]) / sum(shades)
    assert (dark > 0.8) if theme == "dark" else (dark < 0.2)
    inked = sum(shades[128:]) if theme == "dark" else sum(shades[:128])
    assert inked / sum(shades) > 0.01, "the picture is blank"
    assert sum(count > 0 for count in shades) > 50


def test_the_drawings_of_the_markdown(browser, page, tmp_path):
    """A file of its own, as an <img> shows it: not blank, in both themes."""
    image = pytest.importorskip("PIL.Image", reason="looks at pixels")
    for theme in THEMES:
        shot = tmp_path / f"{theme}.png"
        browser(page.with_suffix("") / "trade-off.svg", (960, 560), theme, f"--screenshot={shot}")
        with image.open(shot) as opened:
            shades = opened.convert("L").histogram()
        ends = (sum(shades[:64]), sum(shades[192:]))
        assert min(ends) / sum(shades) > 0.0005
        assert sum(count > 0 for count in shades) > 50
        assert (ends[0] > ends[1]) == (theme == "dark")
