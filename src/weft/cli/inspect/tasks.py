"""`weft tasks`: what can be compared on; `weft tasks listops`: one task's data and baselines."""

from __future__ import annotations

from typing import Annotated, Any

import typer

MOST_LINES, MOST_CHARACTERS = 64, 1000  # of a sample


def tasks(
    task: Annotated[
        str | None, typer.Argument(help="One task, e.g. listops or 'listops(length=256)'.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """List the tasks, or load one: sizes, lengths, classes, trivial baselines and a sample."""
    from weft.cli.screen import console

    if task is None:
        found: Any = every_task()
        show = _list
    else:
        with console(error=True).status(f"preparing {task}"):
            found = facts(task)
        show = _details
    if json:
        from json import dumps

        typer.echo(dumps(found, indent=2, ensure_ascii=False))
    else:
        show(console(), found)


def every_task() -> list[dict[str, Any]]:
    """Each task at its default settings; `missing` says which files it would need."""
    from weft.arena.tasks import TASKS

    return [_summary(TASKS[name]()) for name in TASKS]


def facts(spec: str) -> dict[str, Any]:
    """What one task's splits hold, its baselines and a sample, as plain values."""
    from weft.arena.tasks import SPLITS, TASKS

    task = TASKS.parse(spec)
    splits = {split: task.load(split) for split in SPLITS}
    return {
        **_summary(task),
        "source": task.source,
        "splits": {split: _sizes(examples) for split, examples in splits.items()},
        "class_shares": _shares(splits["train"].labels, task.classes),
        "groups": list(splits["test"].group_names),
        "baselines": task.baselines(),
        "sample": _sample(task, splits["test"]),
    }


def _summary(task: Any) -> dict[str, Any]:
    from weft.config import write
    from weft.errors import WeftError

    settings = write(task)
    found: dict[str, Any] = {"name": settings.pop("name"), "missing": None}
    found["what"] = (type(task).__doc__ or "").strip().splitlines()[0]
    for name in ("kind", "length", "vocab", "classes", "metric", "source"):
        try:
            found[name] = getattr(task, name)
        except WeftError as missing:
            found[name], found["missing"] = None, str(missing)
    return {**found, "settings": settings}


def _sizes(examples: Any) -> dict[str, float]:
    """Rows and their lengths; of a pair, the first document's."""
    import numpy as np

    lengths = examples.rows.lengths
    return {
        "rows": len(examples),
        "mean": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "p95": float(np.quantile(lengths, 0.95)),
        "longest": int(lengths.max()),
    }


def _shares(labels: Any, classes: int) -> list[float]:
    import numpy as np

    if labels is None:
        return []
    return (np.bincount(labels, minlength=classes) / len(labels)).tolist()


def _sample(task: Any, examples: Any) -> dict[str, Any]:
    return {
        "text": task.show(examples.rows[0]),
        "second": None if examples.second is None else task.show(examples.second[0]),
        "label": None if examples.labels is None else int(examples.labels[0]),
    }


def _list(screen: Any, found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from weft.cli.screen import commas

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("name", style="bold", no_wrap=True)
    table.add_column("kind")
    for column in ("length", "ids", "classes"):
        table.add_column(column, justify="right")
    for column in ("what", "data"):
        table.add_column(column)
    for row in found:
        sizes = [commas(row[key]) if row[key] else "–" for key in ("length", "vocab", "classes")]
        data = "your files" if row["missing"] else row["source"]
        table.add_row(row["name"], row["kind"], *sizes, row["what"], data)
    screen.print(table)
    screen.print(
        f"{len(found)} tasks, at their default settings. `weft tasks NAME` loads one and shows its "
        "data and trivial baselines, or says which files it needs.",
        style="dim",
    )


def _details(screen: Any, found: dict[str, Any]) -> None:
    from rich.text import Text

    from weft import spec

    def line(text: str = "", style: str = "") -> None:
        screen.print(Text(text, style=style))

    line(f"{found['name']}: {found['what']}", style="bold")
    line(f"data       {found['source']}")
    line(f"predicts   {_predicts(found)}; scored by {found['metric']}")
    line(f"settings   {spec.write(found['name'], found['settings'])}")
    line()
    screen.print(_split_table(found["splits"]))
    if found["class_shares"] and len(found["class_shares"]) <= 20:
        line()
        line(f"classes    {'  '.join(f'{share:.3f}' for share in found['class_shares'])}  (train)")
    if found["groups"]:
        line(f"groups     {', '.join(found['groups'])}")
    line()
    line("baselines, test", style="bold")
    width = max(map(len, found["baselines"]))
    for name, score in found["baselines"].items():
        line(f"  {name:<{width}}  {score:.4f}")
    line()
    label = found["sample"]["label"]
    line("sample, test" + ("" if label is None else f": class {label}"), style="bold")
    for text in filter(None, (found["sample"]["text"], found["sample"]["second"])):
        line(_short(text))


def _predicts(found: dict[str, Any]) -> str:
    what = {
        "classify": "one of {classes} classes from up to {length:,} tokens",
        "match": "one of {classes} classes from two documents of up to {length:,} tokens",
        "language": "each token from those before it, in windows of {length:,}",
        "translate": "a sequence for each sequence",
    }[found["kind"]]
    return f"{what.format_map(found)}, {found['vocab']:,} ids"


def _split_table(splits: dict[str, dict[str, float]]) -> Any:
    from rich.table import Table

    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("split")
    for column in ("rows", "mean length", "median", "95 %", "longest"):
        table.add_column(column, justify="right")
    for split, sizes in splits.items():
        table.add_row(split, *(f"{value:,.0f}" for value in sizes.values()))
    return table


def _short(text: str) -> str:
    """The beginning of a long sample; pictures are lines and stay whole up to a size."""
    lines = text.splitlines()
    kept = "\n".join(lines[:MOST_LINES])
    if len(set(map(len, lines))) > 1 or len(lines) == 1:
        kept = kept[:MOST_CHARACTERS]
    return kept if kept == text else f"{kept} ..."
