"""Options that verbs with a grid of trainings share."""

from pathlib import Path

import pytest
import typer

from weft.arena.grid.compare import GridOptions
from weft.cli.experiment.grid_options import STOPPED, options, stop


def test_every_option_arrives_and_gigabytes_become_bytes():
    assert options(3, 1.5, 0.5, True) == GridOptions(
        jobs=3, cell_minutes=1.5, memory_limit=2**29, retry=True
    )
    assert options(1, None, None, False) == GridOptions()


def test_a_stopped_grid_says_how_to_go_on(capsys):
    with pytest.raises(typer.Exit) as end:
        stop("ablate", Path("my runs"), 7)
    assert end.value.exit_code == STOPPED
    said = capsys.readouterr().err
    assert "7 trainings" in said
    assert "weft ablate --out 'my runs'" in said
