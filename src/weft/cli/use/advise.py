"""`weft advise`: which mechanisms to try first, and why."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from weft.cli.options import Device, LabelColumn, TextColumn


def advise(
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens (or bytes) of a sequence.")
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal", help="Tokens must not see later ones.")
    ] = False,
    device: Annotated[Device, typer.Option(help="Where it is to run.")] = Device.cpu,
    data: Annotated[
        list[str] | None, typer.Option(help="Your table: the length is taken from its texts.")
    ] = None,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    count: Annotated[int, typer.Option(min=2, help="Mechanisms to name.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="All of it, as JSON.")] = False,
) -> None:
    """A ranked short list of mechanisms with reasons: traits, measured speed, measured accuracy."""
    from weft.cli.screen import console
    from weft.use.advise import advise as advised

    found = advised(
        length, causal=causal, device=device.value, data=data, text=text, label=label, count=count
    )
    if json:
        from json import dumps

        typer.echo(dumps(found.as_dict(), indent=2, ensure_ascii=False))
        return
    way = "causal" if found.causal else "reading both ways"
    screen = console()
    screen.print(f"{found.length:,} tokens, {way}, on {found.device}", style="bold")
    for place, one in enumerate(found.suggestions, start=1):
        _show(screen, place, one)
    few = "; ".join(f"{name}: {why}" for name, why in list(found.excluded.items())[:3])
    if found.excluded:
        screen.print(f"\nnot in the list: {len(found.excluded)}, e.g. {few}", style="dim")
    screen.print("\ncompare them on your work; the list comes from other people's:", markup=False)
    screen.print(found.command, markup=False, soft_wrap=True)


def _show(screen: Any, place: int, one: Any) -> None:
    score = "not measured" if one.score is None else f"{one.score:+.2f}"
    screen.print(f"\n{place}. {one.mixer}  [{score}]", markup=False, style="bold")
    for reason in one.reasons:
        screen.print(f"   {reason}", markup=False)
