"""The command line as such: help, version, wrong calls, a cold start."""

import errno
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import weft
from weft.cli import app
from weft.cli.verbs import Verbs

run = CliRunner().invoke


def module(*args):
    """`python -m weft ...` in a process of its own."""
    command = [sys.executable, "-m", "weft", *args]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["bench", "attention", "--help"], ["pattern", "--help"]]
)
def test_a_cold_start_loads_no_torch(args):
    program = (
        f"import sys; sys.argv = ['weft', *{args}]\n"
        "from weft.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    status = end.code\n"
        "print(status, 'torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.split()[-3:] == ["0", "False", "False"], done.stderr
    assert done.stdout


def test_help_lists_the_verbs():
    shown = run(app, ["--help"]).output
    assert all(verb in shown for verb in ("mixers", "pattern", "bench"))


def test_version():
    done = module("--version")
    assert (done.returncode, done.stdout) == (0, f"weft {weft.__version__}\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["mixer"], "No such command 'mixer'"),
        (["pattern", "sliding(4)"], "Missing option '--length'"),
        (["pattern", "sliding(4)", "--length", "0"], "'--length'"),
        (["pattern", "sliding(4)", "--length", "many"], "'--length'"),
        (["pattern", "sliding(4)", "--length", "8", "--png", "a.jpg"], "ends in .png; got a.jpg"),
        (["bench", "attention", "--device", "tpu"], "'--device'"),
        (["bench", "attention", "--lengths", "12,x"], "separated by commas"),
        (["bench", "attention", "--lengths", "0"], "separated by commas"),
        (["bench", "attention", "--rounds", "0"], "'--rounds'"),
        (["mixers", "--jsn"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_call_ends_with_2(args, message):
    done = run(app, args)
    assert done.exit_code == 2
    # The frame of the message may break its lines.
    assert message in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pattern", "slidin(4)", "--length", "8"], "did you mean 'sliding'"),
        (["pattern", "sliding(0)", "--length", "8"], "got window=0"),
        (["pattern", "sliding((4)", "--length", "8"], "expected ')' at column"),
        (["bench", "attention", "--mixers", "ful"], "did you mean 'full'"),
        (["bench", "attention", "--rivals", "transformers_bert"], "no rival named"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_broken_rule_ends_with_1_and_its_message(args, message):
    done = run(app, args)
    assert done.exit_code == 1
    assert done.output.startswith("error: ")
    assert message in done.output


def test_a_broken_rule_shows_no_traceback():
    done = module("pattern", "slidin(4)", "--length", "8")
    assert done.returncode == 1
    assert done.stderr == "error: no pattern named 'slidin'; did you mean 'sliding' or 'sink'?\n"
    assert done.stdout == ""


def test_a_bug_is_not_swallowed(monkeypatch):
    from weft.cli.inspect import mixers

    def broken():
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(mixers, "every_mixer", broken)
    assert isinstance(run(app, ["mixers"]).exception, ZeroDivisionError)


VERBS_THAT_WRITE = {
    "compare": ["compare", "--task", "key_value(pairs=2)", "--mixers", "fnet", "--out"],
    "train": ["train", "demo", "--out"],
    "ablate": ["ablate", "ablate_bytes", "--out"],
}


@pytest.mark.parametrize("verb", VERBS_THAT_WRITE)
@pytest.mark.parametrize("place", ["a file", "below a file", "unwritable"])
def test_a_place_that_cannot_be_written_is_said_in_words(tmp_path, verb, place):
    (tmp_path / "file").write_text("years of work")
    out = {
        "a file": tmp_path / "file",
        "below a file": tmp_path / "file" / "run",
        "unwritable": "/proc/weft/run",
    }[place]
    done = run(app, [*VERBS_THAT_WRITE[verb], str(out)])
    assert done.exit_code == 1, done.output
    said = re.sub(r"\s+", " ", done.output)
    assert re.search(r"error: '/\S+' cannot be (a folder|made): .*; give another folder", said)
    assert (tmp_path / "file").read_text() == "years of work"


def test_the_escape_bytes_of_a_message_are_shown():
    done = run(app, ["mixers", "--plugin", "\x1b[31mred"])
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert r"\x1b[31mred" in done.output


def test_a_reader_that_stops_is_no_error():
    """`weft mixers | head -1`: the rest is not wanted; a file that broke is another matter."""
    verbs = typer.Typer(cls=Verbs)

    @verbs.command()
    def unread():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    @verbs.command()
    def broken():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe", "socket")

    assert "cannot be used" not in run(verbs, ["unread"]).output
    assert "socket cannot be used: Broken pipe" in run(verbs, ["broken"]).output
