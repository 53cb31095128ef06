"""`weft pattern`: what it prints, against counts made here."""

import pytest
import torch
from typer.testing import CliRunner

from weft.cli import app
from weft.cli.inspect.pattern import decoding
from weft.patterns import pattern
from weft.patterns.derive import mask

run = CliRunner().invoke


def shown(expression, *args):
    done = run(app, ["pattern", expression, *args])
    assert done.exit_code == 0, done.output
    facts = {}
    for line in done.output.splitlines():
        name, _, value = line.partition(" ")
        facts.setdefault(name, value.strip())
    return facts, done.output


def test_counts():
    n, heads, d = 300, 2, 16
    facts, _ = shown(
        "sliding(20) | global(first=3)", "--length", "300", "--heads", "2", "--head-dim", "16"
    )
    seen = int(mask(pattern("sliding(20) | global(first=3)"), n).sum())
    assert facts["size"] == "300 tokens, 2 heads of 16"
    assert facts["visible"].startswith(f"{seen:,} of 90,000 pairs a head, {100 * seen / n**2:.3g}%")
    computed = int(facts["computed"].split()[0].replace(",", ""))
    assert seen <= computed <= n**2
    assert facts["work"].startswith(f"{4 * d * heads * computed / 1e6:.3g} MFLOP")
    assert f"dense attention {4 * d * heads * n**2 / 1e6:.3g} MFLOP" in facts["work"]
    assert facts["traffic"].startswith(f"{4 * heads * n * d * 2 / 1e3:.3g} kB")


def keys_still_read(expression, n, heads=1):
    """Keys before n that some query from n on can read, looked up far ahead."""
    later = mask(pattern(expression), 4 * n, heads=heads)[:, n:, :n]
    return int(later.any(dim=(0, 1)).sum())


@pytest.mark.parametrize(
    "expression",
    ["causal & sliding(20)", "causal & (sliding(20) | keys(first=3))", "causal & strided(5)"],
)
def test_what_a_decoder_keeps(expression):
    facts, _ = shown(expression, "--length", "100")
    kept = keys_still_read(expression, 100)
    assert facts["decoding"] == f"keeps {kept} keys after 100 tokens"


def test_what_a_decoder_keeps_over_all_heads():
    text = "causal & per_head(sliding(20), sliding(7) | keys(first=2))"
    kept = keys_still_read(text, 100, heads=2)
    each = [pattern(text).head(a, 2) for a in range(2)]
    assert decoding(each, 100) == f"keeps {kept} keys after 100 tokens"


def test_what_does_not_decode():
    assert "not causal: does not decode" in shown("sliding(9)", "--length", "50")[0]["decoding"]
    kept = keys_still_read("causal & sliding(9)", 50)
    assert f"it keeps {kept} keys" in shown("sliding(9)", "--length", "50")[0]["decoding"]
    needs = shown("causal & global(last=2)", "--length", "50")[0]["decoding"]
    assert needs == "needs the final length: does not decode"


def test_kernels_and_parts():
    _, text = shown("causal & (sliding(128) | strided(128))", "--length", "8192")
    assert "CPU       gather: blocks cost 0.0" in text
    assert "GPU       triton: blocks cost 0." in text
    assert "natural order; 1,270 blocks of 32, 762 full: causal & sliding(window=128)" in text
    assert "fold by 128; 128 × 3 blocks of 32" in text
    _, text = shown("sliding(64) | global(first=16)", "--length", "8192")
    assert "16 selected keys" in text
    assert "16 rows in a separate pass, over all keys" in text
    _, text = shown("window2d(width=128, window=5)", "--length", "16384")
    assert "tiles of 8×16 pixels" in text
    assert "sdpa: no key is left out" in shown("full", "--length", "64")[1]


def test_reach():
    seen = mask(pattern("causal & sliding(8)"), 64)[0].double()
    share = ((seen @ seen @ seen) > 0).double().mean()
    facts, _ = shown("causal & sliding(8)", "--length", "64", "--layers", "3")
    assert facts["reach"] == f"{100 * share:.3g}% of pairs after 3 layers"


def test_the_picture_in_the_terminal():
    _, text = shown("causal & sliding(8)", "--length", "64")
    drawing = [line for line in text.splitlines() if set(line) & set("▀▄█")]
    seen = mask(pattern("causal & sliding(8)"), 64)[0]
    assert len(drawing) == 32
    for row, line in enumerate(drawing):
        inked = [j for j, mark in enumerate(line) if mark != " "]
        assert inked == torch.nonzero(seen[2 * row] | seen[2 * row + 1]).flatten().tolist()


def test_heads_follow_the_expression():
    facts, text = shown("per_head(sliding(4), strided(3), sliding(9))", "--length", "64")
    assert facts["size"] == "64 tokens, 9 heads of 64"
    assert "sliding(window=9)" in text
    done = run(app, ["pattern", "per_head(sliding(4), strided(3))", "--length", "64", "--heads=3"])
    assert done.exit_code == 1
    assert "3 heads is not a multiple of 2 patterns" in done.output


def test_pictures_are_written(tmp_path):
    png, svg = tmp_path / "a.png", tmp_path / "b.svg"
    _, text = shown("sliding(4)", "--length", "32", "--png", str(png), "--svg", str(svg))
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in svg.read_text()[:1000]
    assert f"wrote {png}\n" in text


def test_colours_where_there_are_some(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    text = run(app, ["pattern", "causal & sliding(8)", "--length", "64"]).output
    lines = [line for line in text.splitlines() if "▀" in line]
    assert len(lines) == 32
    # Dark where nothing is seen, full light where everything is.
    assert "\x1b[38;2;126;200;255;48;2;126;200;255m" in lines[10]
    assert "\x1b[38;2;18;22;34;48;2;18;22;34m" in lines[10]


def test_ranks_show_what_each_reads_and_sends(tmp_path):
    given = ("--length", "64", "--ranks", "4", "--heads", "2", "--head-dim", "8")
    _, output = shown("causal & sliding(5)", *given, "--dtype", "float32")
    rows = [line.split() for line in output.splitlines() if line.split()[:1] in (["0"], ["2"])]
    first, third = rows[0], rows[1]
    assert first[1:4] == ["0–15", "nothing", "none"]
    assert third[1:5] == ["32–47", "28–31", "1", "4"]
    # 4 keys and values of 2 heads, 8 wide, in float32: to the rank after it, gradients before.
    assert third[6:] == ["512", "B", "512", "B"]
    picture = tmp_path / "split.png"
    pytest.importorskip("matplotlib")
    _, output = shown("sliding(5) | global(first=2)", *given, "--png", str(picture))
    assert "2 queries that read all go round" in " ".join(output.split())
    assert picture.stat().st_size > 1000


def test_ranks_that_cannot_be_say_so():
    for more, says in [
        (("--ranks", "9"), "at most 8 ranks"),
        (("--ranks", "2", "--kv-heads", "3"), "kv-heads=3"),
    ]:
        done = run(app, ["pattern", "causal", "--length", "8", *more])
        assert done.exit_code == 1
        assert says in done.output
