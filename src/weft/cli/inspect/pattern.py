"""`weft pattern`: what one expression costs, keeps and looks like, before anything is run."""

from __future__ import annotations

from enum import StrEnum
from math import lcm
from pathlib import Path
from typing import Annotated, Any

import typer

HEADS = 8  # where none are given
TERMINAL_PIXELS = 64


class Balance(StrEnum):
    """How a sequence is shared out."""

    none = "none"
    head_tail = "head_tail"


class Dtype(StrEnum):
    """Numbers that travel."""

    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"
    float64 = "float64"

    @property
    def bytes(self) -> int:
        """Of one number."""
        return {"float32": 4, "float64": 8}.get(self.value, 2)


def pattern(
    expression: Annotated[
        str, typer.Argument(metavar="EXPR", help="E.g. 'sliding(512) | global(first=64)'.")
    ],
    length: Annotated[int, typer.Option(min=1, help="Tokens of the sequence.")],
    heads: Annotated[int | None, typer.Option(min=1, help="Heads of the layer.")] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Width of a head.")] = 64,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Show how far influence reaches after N layers.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write the picture here, as PNG.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the picture here, as SVG.")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Show what each of N processes reads and sends.")
    ] = None,
    balance: Annotated[
        Balance, typer.Option(help="How --ranks share the sequence out.")
    ] = Balance.none,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key heads, where fewer than heads, for --ranks.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Of what --ranks send.")] = Dtype.bfloat16,
) -> None:
    """Show a pattern: its density, cost, decoding state, kernels and picture."""
    from weft.cli.screen import console
    from weft.patterns import pattern as parse
    from weft.patterns import picture

    _check_suffix(png, ".png")
    _check_suffix(svg, ".svg")
    found = parse(expression)
    screen, progress = console(), console(error=True)
    heads = heads or _default_heads(found)
    with progress.status("counting"):
        facts = _facts(found, length, heads, head_dim, layers)
    screen.print(str(found), style="bold", markup=False, soft_wrap=True)
    screen.print(_grid(facts))
    split = None
    if ranks is not None:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        with progress.status("counting what ranks send"):
            split = _split(found, length, ranks, sizes | {"balance": balance, "dtype": dtype})
        screen.print(_ranks(split))
    for shown, own in picture.by_pattern(found, heads):
        if len(own) < heads:
            screen.print(f"\n{shown}", markup=False)
        shares = picture.density(shown, length, TERMINAL_PIXELS)
        screen.print(_terminal_picture(shares, screen.color_system is not None))
    for path in (png, svg):
        if path is not None:
            with progress.status("drawing"):
                if split is None:
                    picture.save(found, length, path, heads=heads, layers=layers)
                else:
                    _save_split(found, split, path, heads)
            screen.print(f"wrote {path}", markup=False, soft_wrap=True)


def _check_suffix(path: Path | None, suffix: str) -> None:
    if path is not None and path.suffix.lower() != suffix:
        raise typer.BadParameter(f"the file ends in {suffix}; got {path}", param_hint=suffix[1:])


def _default_heads(found: Any) -> int:
    """Eight, or the next number that every per_head in the expression divides."""
    least = _least_heads(found)
    return least * -(-HEADS // least)


def _least_heads(found: Any) -> int:
    from weft.patterns import PerHead

    if isinstance(found, PerHead):
        return lcm(len(found.patterns), *map(_least_heads, found.patterns))
    inner = getattr(found, "parts", ()) or filter(None, [getattr(found, "inner", None)])
    return lcm(1, *map(_least_heads, inner))


def _facts(
    found: Any, n: int, heads: int, head_dim: int, layers: int | None
) -> list[tuple[str, str]]:
    from weft.cli.screen import commas, percent
    from weft.patterns import picture

    groups = picture.by_pattern(found, heads)
    facts = [("size", f"{commas(n)} tokens, {heads} heads of {head_dim}")]
    facts += _costs(groups, n, heads, head_dim)
    facts.append(("decoding", decoding([shown for shown, _ in groups], n)))
    if layers is not None:
        share = picture.overall(picture.reach(found, n, layers, heads=heads), n)
        facts.append(("reach", f"{percent(share)} of pairs after {layers} layers"))
    for device, name in (("cpu", "CPU"), ("cuda", "GPU")):
        facts += _kernels(groups, n, heads, device, name)
    return facts


def _costs(
    groups: list[tuple[Any, list[int]]], n: int, heads: int, head_dim: int
) -> list[tuple[str, str]]:
    from weft.cli.screen import commas, percent, scaled
    from weft.patterns.derive import cost

    each = [(cost(shown, n, head_dim=head_dim), len(own)) for shown, own in groups]
    pairs = sum(one.pairs * count for one, count in each) // heads
    computed = sum(one.computed * count for one, count in each) // heads
    flops = sum(one.flops * count for one, count in each)
    dense = 4 * head_dim * n * n * heads
    moved = sum(one.bytes * count for one, count in each)
    return [
        ("visible", f"{commas(pairs)} of {commas(n * n)} pairs a head, {percent(pairs / n**2)}"),
        ("computed", f"{commas(computed)} pairs a head in blocks, {percent(computed / n**2)}"),
        ("work", f"{scaled(flops, 'FLOP')} forward; dense attention {scaled(dense, 'FLOP')}"),
        ("traffic", f"{scaled(moved, 'B')}: q, k, v and the output once, 2 bytes a number"),
    ]


def decoding(each: list[Any], n: int) -> str:
    """What a decoder keeps after n tokens, over all heads; or why there is none."""
    from weft.cli.screen import commas

    if any(shown.needs_length for shown in each):
        return "needs the final length: does not decode"
    if all(shown.causal for shown in each):
        return f"keeps {commas(_kept(each, n))} keys after {commas(n)} tokens"
    from weft.patterns import Causal

    would = _kept([Causal() & shown for shown in each], n)
    return (
        "not causal: does not decode; joined with `causal &` it keeps "
        f"{commas(would)} keys after {commas(n)} tokens"
    )


def _kept(each: list[Any], n: int) -> int:
    from functools import reduce

    from weft.patterns.derive import kept

    return kept(reduce(lambda a, b: a | b, each), n)


def _kernels(
    groups: list[tuple[Any, list[int]]], n: int, heads: int, device: str, name: str
) -> list[tuple[str, str]]:
    """The kernel and the parts for each group of heads."""
    import torch

    from weft.kernels.attend.planner import Request
    from weft.patterns.layout import TooManyBlocks

    facts = []
    for shown, own in groups:
        request = Request(
            pattern=shown,
            batch=1,
            heads=len(own),
            n=n,
            m=n,
            device=device,
            dtype=torch.float32 if device == "cpu" else torch.bfloat16,
            learning=True,
            masked=False,
            biased=False,
            dropout=0.0,
            lse=False,
        )
        which = "" if len(own) == heads else f" (heads {own[0]}–{own[-1]})"
        try:
            facts += _planned(name, which, request)
        except TooManyBlocks as error:
            facts.append((name, f"not planned{which}: {error}"))
    return facts


def _planned(name: str, which: str, request: Any) -> list[tuple[str, str]]:
    """The kernel of one group of heads, and its parts."""
    from weft.kernels.attend.planner import choose

    chosen = choose(request)
    facts = [(name, f"{chosen.kernel}{which}: {chosen.reason}")]
    if chosen.lowered is not None:
        parts = lowering(chosen.lowered, request.n, chosen.block)
        facts += [("", f"  {text}") for text in parts]
    return facts


def lowering(lowered: Any, n: int, block: int) -> list[str]:
    """How the pattern is computed, a line for each part."""
    found = [f"{_order(part, n)}; {_blocks(part, block)}: {part.pattern}" for part in lowered.parts]
    if lowered.apart is not None:
        found.append(f"{lowered.apart.rows.count} rows in a separate pass, over all keys")
    return found


def _order(part: Any, n: int) -> str:
    from weft.patterns import Tiles

    if part.fold > 1:
        return f"fold by {part.fold}"
    if isinstance(part.cols, Tiles):
        return f"tiles of {part.cols.tile_height}×{part.cols.tile_width} pixels"
    if part.cols.count < n:
        return f"{part.cols.count} selected keys"
    return "natural order"


def _blocks(part: Any, block: int) -> str:
    from weft.cli.screen import commas

    found = part.layout(block)
    full, total = int(found.full.sum()), len(found.full)
    times = f"{part.fold} × " if part.fold > 1 else ""
    return f"{times}{commas(total)} blocks of {block}, {commas(full)} full"


def _split(found: Any, n: int, ranks: int, settings: dict[str, Any]) -> Any:
    """The pattern over this many processes."""
    from weft.errors import WeftError
    from weft.scale.context.view import view

    heads, kv_heads = settings["heads"], settings.pop("kv_heads")
    if kv_heads is not None and heads % kv_heads:
        raise WeftError(
            f"query heads share key heads evenly: heads={heads} is not a multiple of "
            f"kv-heads={kv_heads}"
        )
    balance, dtype = settings.pop("balance"), settings.pop("dtype")
    settings |= {"kv_heads": kv_heads, "itemsize": dtype.bytes, "balance": balance.value}
    return view(found, n, ranks, **settings)


def _ranks(split: Any) -> Any:
    """What each rank holds, reads and sends in one layer."""
    from rich import box
    from rich.table import Table

    from weft.cli.screen import commas, percent, scaled
    from weft.scale.context.view import runs_of

    turns = "in turns, a shard at a time" if split.turns else "at once"
    caption = f"keys come {turns}; all ranks send {scaled(split.total, 'B')} for one layer and row"
    if split.wide:
        caption += f"; {commas(split.wide)} queries that read all go round instead of keys"
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", caption=caption)
    table.add_column("rank", justify="right")
    for name in ("holds", "reads of others", "from ranks"):
        table.add_column(name)
    for name in ("keys", "of the pairs", "sends forward", "backward"):
        table.add_column(name, justify="right")
    for each in split.ranks:
        held = ", ".join(f"{commas(a)}–{commas(b)}" for a, b in each.held)
        table.add_row(
            *(str(each.rank), held, runs_of(each.fetched) or "nothing"),
            ", ".join(map(str, each.sources)) or "none",
            *(commas(len(each.fetched)), percent(each.pairs)),
            *(scaled(each.forward, "B"), scaled(each.backward, "B")),
        )
    return table


def _save_split(found: Any, split: Any, path: Path, heads: int) -> None:
    from weft.scale.context.view import save

    save(found, split, path, heads=heads)


def _grid(facts: list[tuple[str, str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, value in facts:
        grid.add_row(name, Text(value))
    return grid


def _terminal_picture(shares: Any, colour: bool) -> Any:
    """The mask in half-blocks: shades of blue where there are colours, else of ink."""
    from rich.text import Text

    from weft.patterns import picture

    if not colour:
        return Text("\n".join(picture.lines(shares)), no_wrap=True)
    bright = picture.shaded(shares)
    text = Text(no_wrap=True)
    for row in range(0, len(bright), 2):
        below = bright[row + 1] if row + 1 < len(bright) else [0.0] * len(bright)
        for top, bottom in zip(bright[row], below, strict=True):
            text.append("▀", style=f"{_blue(top)} on {_blue(bottom)}")
        text.append("\n")
    return text


def _blue(bright: float) -> str:
    dark, light = (18, 22, 34), (126, 200, 255)
    mixed = (round(a + (b - a) * float(bright)) for a, b in zip(dark, light, strict=True))
    return f"rgb({','.join(map(str, mixed))})"
