"""How to reproduce a run: the command, the data, the environment and all settings."""

from __future__ import annotations

import shlex

from weft.report.page.document import Block, Command, Folded, Paragraph, Section
from weft.report.page.sections import Material
from weft.report.read.fields import number
from weft.report.read.run_folder import RunFiles
from weft.report.tables import settings as tables
from weft.report.tables.comparison import cell_table


def reproduce(material: Material) -> Section:
    """The last section of a report."""
    run = material.run
    blocks: list[Block] = [
        Paragraph("To reproduce this run in a new folder:"),
        Command(command(run)),
    ]
    if data := run.first("data"):
        blocks.append(Paragraph(f"{data}.", "Data:"))
    environment, settings = tables.environment(run), tables.settings(run)
    if environment:
        blocks.append(Folded("Environment", [tables.facts(environment)]))
    if settings:
        blocks.append(Folded("Settings", [tables.facts(settings)]))
    if run.rows:
        blocks.append(Folded(f"All cells ({len(run.rows)})", [cell_table(run)]))
    return Section("reproduce", "Reproduce", blocks)


def command(run: RunFiles) -> str:
    """The command line of the run: as recorded, or reconstructed from the results."""
    recorded = run.grid.get("command")
    if isinstance(recorded, list):
        return shlex.join(map(str, recorded))
    if recorded:
        return str(recorded)
    if run.of_training:
        return "weft train SETTINGS.toml --out runs/again"
    flat = {key.rpartition(".")[2]: value for key, value in tables.flattened(run.grid)}
    mixers = list(dict.fromkeys(str(row.get("mixer") or row.get("label")) for row in run.rows))
    lengths = sorted({int(n) for row in run.rows if (n := number(row, "length"))})
    words = ["weft", "compare", "--task", run.task or "TASK"]
    words += ["--mixers", ",".join(mixers)] if mixers else []
    words += ["--seeds", str(len({row.get("seed") for row in run.rows}))] if run.rows else []
    words += ["--lengths", ",".join(map(str, lengths))] if lengths else []
    for key in ("steps", "minutes"):
        words += [f"--{key}", str(flat[key])] if flat.get(key) is not None else []
    return shlex.join([*words, "--out", "runs/again"])
