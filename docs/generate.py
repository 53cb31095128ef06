"""Write what the code knows into the documents: `python docs/generate.py`.

Generated text stands between `<!-- NAME:begin -->` and `<!-- NAME:end -->`; everything else in a
document is written by hand. A test compares the committed documents with what this would write.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = ROOT / "src" / "weft" / "use" / "measured.json"
DOTS_PER_INCH = 100


@dataclasses.dataclass(frozen=True)
class Picture:
    """A pattern drawn at some length; of the mixer with these settings, if it is one's."""

    pattern: str
    length: int = 512
    heads: int = 1
    layers: int | None = None
    mixer: str | None = None
    causal: bool = False

    @property
    def title(self) -> str:
        """What the file says of itself, so that a stale picture is found."""
        layers = f", {self.layers} layers" if self.layers else ""
        return f"{self.pattern}; {self.length} tokens, {self.heads} heads{layers}"


PICTURES = {
    "full": Picture("causal", 256, mixer="full", causal=True),
    "block_local": Picture(
        "block_neighbours(32, before=1, after=0)",
        256,
        mixer="block_local(block=32, before=1)",
    ),
    "sliding_window": Picture(
        "causal & (sliding(32) | sink(4))",
        256,
        mixer="sliding_window(window=32, sinks=4)",
        causal=True,
    ),
    "sparse_transformer_strided": Picture(
        "causal & (sliding(32) | strided(32))",
        mixer="sparse_transformer(stride=32)",
        causal=True,
    ),
    "sparse_transformer_fixed": Picture(
        "causal & (same_block(32) | columns(32, width=4))",
        mixer="sparse_transformer(kind='fixed', stride=32, summary=4)",
        causal=True,
    ),
    "longformer": Picture(
        "sliding(33) | global(first=4)", 256, mixer="longformer(window=33, global_first=4)"
    ),
    "bigbird": Picture(
        "block_neighbours(16) | global(first=16, last=16) | random_blocks(3, block=16, spare=1)",
        mixer="bigbird(block=16)",
    ),
    "axial": Picture(
        "per_head(causal & axis(16, 'x'), causal & axis(16, 'y'))",
        256,
        heads=2,
        mixer="axial(width=16)",
        causal=True,
    ),
    "transformer_xl": Picture(
        "causal & block_neighbours(32, before=1, after=0)",
        256,
        mixer="transformer_xl(segment=32, memory=32)",
        causal=True,
    ),
    "image_transformer": Picture(
        "causal & rectangles(16, 4, 4, above=4, beside=4)",
        256,
        mixer="image_transformer(width=16, rectangle=[4, 4], margin=[4, 4])",
        causal=True,
    ),
    "swin": Picture("shifted_window(16, 4, 2)", 256, mixer="swin(width=16, size=4, shift=2)"),
    "receptive_field": Picture("causal & sliding(16)", 256, layers=6),
    "window2d": Picture("window2d(width=16, window=3)", 256),
}


def mixer_table() -> str:
    """All mixers, from their traits."""
    from weft.mixers import MIXERS

    lines = [
        "| mixer | family | exact | both ways | causal | context | decodes "
        "| time | memory | state |",
        "|---|---|:-:|:-:|:-:|:-:|:-:|---|---|---|",
    ]
    for name in MIXERS:
        t = MIXERS[name]().traits
        able = (t.exact, t.bidirectional, t.causal, t.cross, t.state is not None)
        cells = [f"[{name}](mixers/{name}.md)", t.family, *("yes" if x else "–" for x in able)]
        lines.append("| " + " | ".join([*cells, t.time, t.memory, t.state or "–"]) + " |")
    return "\n".join(lines)


def exchange_table() -> str:
    """What ranks exchange where they share a sequence, mixer by mixer."""
    from weft.mixers import MIXERS

    lines = ["| mixer | ranks exchange |", "|---|---|"]
    for name in MIXERS:
        said = MIXERS[name]().traits.context_parallel
        lines.append(f"| [{name}](../mixers/{name}.md) | {said or 'nothing: they cannot'} |")
    return "\n".join(lines)


def traits_table(name: str) -> str:
    """One mixer's traits, at its default settings."""
    from weft.mixers import MIXERS

    t = MIXERS[name]().traits
    authors, _, address = t.paper.partition(", http")
    ways = [word for word, able in (("both ways", t.bidirectional), ("causal", t.causal)) if able]
    exact = "yes: dense softmax attention over the keys that its pattern leaves"
    rows = [
        ("family", t.family),
        ("reads", " or ".join(ways)),
        ("another sequence (context)", "yes" if t.cross else "no"),
        ("exact", exact if t.exact else "no: a function of its own"),
        ("time of a layer", f"O({t.time})"),
        ("memory of a layer", f"O({t.memory})"),
        ("decoding state", f"{t.state} numbers" if t.state else "does not decode"),
        ("`torch.compile` as one graph", "yes" if t.compiles else "no"),
        ("ranks that share a sequence exchange", t.context_parallel or "nothing: they cannot"),
        ("paper", f"[{authors}](http{address})"),
    ]
    if t.marks:
        known = "; ".join(f"`{mark.name}`: {mark.about}" for mark in t.marks)
        rows.insert(-1, ("marks of tokens", known))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def limits_list() -> str:
    """What mechanisms cannot do, or some alone can, from their traits."""
    from weft.mixers import MIXERS

    traits = {name: MIXERS[name]().traits for name in MIXERS}
    lists = {
        "cannot be causal": [name for name, t in traits.items() if not t.causal],
        "are causal by construction": [name for name, t in traits.items() if not t.bidirectional],
        "read another sequence": [name for name, t in traits.items() if t.cross],
        "do not decode token by token": [name for name, t in traits.items() if t.state is None],
        "are one graph of `torch.compile` on a CPU": [n for n, t in traits.items() if t.compiles],
    }
    return "\n".join(
        f"  - {len(names)} of {len(traits)} {what}: {', '.join(names)}."
        for what, names in lists.items()
    )


def accepts_list() -> str:
    """Which mechanisms take each projection, found by building them."""
    from weft.errors import WeftError
    from weft.mixers import MIXERS, Frame

    def takes(name: str, projection: str) -> bool:
        config = MIXERS[name]()
        causal = not config.traits.bidirectional
        try:
            config.build(Frame(dim=64, heads=4, length=64, causal=causal, projection=projection))
        except WeftError:
            return False
        return True

    lines = []
    for projection in ("multiplicative", "multiplicative_conv"):
        able = [name for name in MIXERS if takes(name, projection)]
        lines.append(f"- `{projection}`, {len(able)} of {len(list(MIXERS))}: {', '.join(able)}.")
    return "\n".join(lines)


def feedforward_table() -> str:
    """All feed-forwards, from their traits."""
    from weft.feedforward import FEEDFORWARDS

    lines = [
        "| feed-forward | what | parameters | products per token | paper |",
        "|---|---|---|---|---|",
    ]
    for name in FEEDFORWARDS:
        t = FEEDFORWARDS[name].traits
        authors, _, address = t.paper.partition(", http")
        link = f"[{name}](../src/weft/feedforward/{name}.py)"
        paper = f"[{authors}](http{address})"
        lines.append("| " + " | ".join([link, t.summary, t.parameters, t.time, paper]) + " |")
    return "\n".join(lines)


def pattern_table() -> str:
    """All patterns, from their registry."""
    from weft.patterns import PATTERNS

    lines = ["| expression | in Python | reads |", "|---|---|---|"]
    for name in PATTERNS:
        made = PATTERNS[name]
        reads = (made.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
        lines.append(f"| `{name}{_settings(made)}` | `{made.__name__}` | {reads} |")
    return "\n".join(lines)


def _settings(made: type[Any]) -> str:
    if not dataclasses.is_dataclass(made):
        return "(pattern, ...)"
    fields = dataclasses.fields(made)
    return f"({', '.join(map(_setting, fields))})" if fields else ""


def _setting(field: Any) -> str:
    if field.default is dataclasses.MISSING:
        return field.name
    if field.default is None or isinstance(field.default, bool):
        return f"{field.name}={str(field.default).lower()}"
    return f"{field.name}={[] if field.default == () else repr(field.default)}"


def output_table() -> str:
    """All outputs of language models, from their registry."""
    import weft.layers.outputs as outputs

    lines = ["| output | what it is |", "|---|---|"]
    for name in outputs.OUTPUTS:
        made = outputs.OUTPUTS[name]
        said = (made.__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
        lines.append(f"| `{name}{_settings(made)}` | {said} |")
    return "\n".join(lines)


def architecture_table() -> str:
    """The checkpoints that are read."""
    from weft.interop.hf.checkpoints.registry import readers

    lines = ["| `model_type` | heads | notes |", "|---|---|---|"]
    for name, reader in sorted(readers().items()):
        lines.append(f"| `{name}` | {', '.join(reader.heads)} | {reader.note} |")
    return "\n".join(lines)


def refused_table() -> str:
    """The checkpoints that are known and not read."""
    from weft.interop.hf.checkpoints.registry import REFUSED

    lines = ["| `model_type` | why it is not read |", "|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {why} |" for name, why in sorted(REFUSED.items())])


def projection_table() -> str:
    """All projections of attention, from their registry."""
    from weft.layers.projections.dense import PROJECTIONS
    from weft.mixers import MIXERS

    assert MIXERS  # importing the mixers registers all projections
    lines = ["| projection | what it is |", "|---|---|"]
    for name in PROJECTIONS:
        made = PROJECTIONS[name]
        if not made.__module__.startswith("weft."):  # a plug-in's, or a test's
            continue
        lines.append(f"| `{name}{_settings(made)}` | {(made.__doc__ or '').splitlines()[0]} |")
    return "\n".join(lines)


def objective_table() -> str:
    """All objectives, from their registry."""
    from inspect import getmodule

    from weft.objectives import OBJECTIVES

    lines = ["| objective | what is learned |", "|---|---|"]
    for name in OBJECTIVES:
        made = OBJECTIVES[name]
        said = (getmodule(made).__doc__ or "").strip().splitlines()[0].replace("|", "\\|")
        lines.append(f"| `{name}{_settings(made)}` | {said} |")
    return "\n".join(lines)


def ablation(rows: list[dict[str, Any]] | None) -> str:
    """The table of an ablation, ranked, and how its ranks agree with the published ones."""
    from weft.report.page.ablation import ablation_table, agreement, ranked
    from weft.report.page.markdown import grid_markdown

    if not rows:
        return "This recipe has no committed results yet."
    place = rows[0]
    told = f"{place['data']}; {place['device_name']}, torch {place['torch']}, {place['date'][:10]}."
    parts = [told, *(sentence.text for sentence in agreement(ranked(rows)))]
    return "\n\n".join([*parts, grid_markdown(ablation_table(rows))])


def settings_table(registry: Any) -> str:
    """The entries of a small registry with their settings, and what each says of itself."""
    lines = ["| setting | what it is |", "|---|---|"]
    for name in registry:
        made = registry[name]
        said = (made.__doc__ or "").strip().splitlines()[0]
        lines.append(f"| `{name}{_settings(made)}` | {said} |")
    return "\n".join(lines)


def depth_table(rows: list[dict[str, Any]]) -> str:
    """Time and parameters of depth rules, relative to the plain stack."""
    lines = [
        "| case | measured | layers that run | time | parameters |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (f"{row[name]:.2f}" for name in ("expected", "ratio", "parameters"))
        lines.append(f"| {row['case']} | {row['measure']} | " + " | ".join(cells) + " |")
    place = rows[0]
    told = f"{place['layers']} layers, {place['dim']} wide, {place['length']} tokens"
    return "\n".join([f"{told}; {place['device_name']}, one thread.", "", *lines])


def figures(rows: list[dict[str, Any]] | None, columns: dict[str, str]) -> str:
    """Rows of a benchmark as a table: columns by heading, numbers with two places or more."""
    if not rows:
        return "No rows of this are committed."
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        values = [row[key] for key in columns.values()]
        cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in values]
        lines.append("| " + " | ".join(cells) + " |")
    told = f"{rows[0]['layers']} layers, {rows[0]['dim']} wide; {rows[0]['device_name']}, "
    return "\n".join([f"{told}{rows[0]['threads']} threads.", "", *lines])


def events_table(rows: list[dict[str, Any]]) -> str:
    """Rows of benchmarks/cases/events_speed.py: what reading and encoding costs."""
    heads = (
        "file",
        "events",
        "GB",
        "events a second",
        "of a CPU",
        "most memory, MB",
        "load before",
    )
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        kind = "CSV" if row["kind"] == "csv" else "Parquet"
        cells = [f"{kind}, in order of time" if row["mixed"] else kind, f"{row['events']:,}"]
        cells += [f"{row['file_bytes'] / 1e9:.2f}", f"{row['events_per_second']:,}"]
        cells += [f"{row['events_per_cpu_second']:,}", f"{row['peak_bytes'] / 1e6:,.0f}"]
        cells += [f"{row['load']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    told = f"{rows[0]['device_name']}, {rows[0]['cores']} cores, shared with other programs (load)."
    return "\n".join([told, "", *lines])


def clients_table(rows: list[dict[str, Any]]) -> str:
    """Rows of benchmarks/cases/real_clients.py: mean Gini over seeds, with the error of one."""
    heads = ("data", "mechanism", "Gini", "error of one seed", "by clients drawn again", "AUC")
    lines = ["| " + " | ".join((*heads, "seeds")) + " |", "|---" * 7 + "|"]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["data"], row["label"]), []).append(row)
    for (data, label), own in cells.items():
        names = ("gini", "gini error", "gini bootstrap error", "AUC")
        means = [f"{sum(row[name] for row in own) / len(own):.3f}" for name in names]
        lines.append("| " + " | ".join((f"`{data}`", label, *means, str(len(own)))) + " |")
    return "\n".join([f"{rows[0]['device_name']}, one thread.", "", *lines])


def cells_table(rows: list[dict[str, Any]] | None) -> str:
    """Trainings of benchmarks/cases/cells.py: test accuracy beside validation and budget."""
    if not rows:
        return "No rows of this are committed."
    places = {
        f"{row['device_name']}, {row['threads']} thread{'s' * (row['threads'] > 1)}": row["cuda"]
        for row in rows
    }
    told = "; ".join(f"{'CUDA' if cuda else 'a CPU'}: {name}" for name, cuda in places.items())
    names = "mechanism and seed", "test", "sd", "validation", "trivial rule", "updates", "batch"
    lines = ["| " + " | ".join((*names, "seconds")) + " |", "|---" * 8 + "|"]
    for row in rows:
        error = (row["score"] * (1 - row["score"]) / row["count"]) ** 0.5
        rule = max(json.loads(row["rules"]).values())
        batch = json.loads(row["experiment"])["training"]["batch"]
        cells = [row["cell"], f"{row['score']:.3f}", f"{error:.3f}", f"{row['validation']:.3f}"]
        cells += [f"{rule:.3f}", f"{row['steps']:,}", str(batch), f"{row['seconds']:,.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    data = "; ".join(dict.fromkeys(row["data"] for row in rows))
    shared = "The processor was shared; seconds are of the clock. sd: binomial."
    return "\n".join([f"On {told}. {shared} {data}.", "", *lines])


def exit_sections(found: dict[str, list[dict[str, Any]]]) -> dict[str, str]:
    """Early exit of documents and of tokens."""
    rows = {"rule": "case", "batch": "batch", "faster": "speedup", "layers run": "mean_layers"}
    same = {"agreement": "agreement"}
    return {
        "exit_rows": figures(found.get("cpu_early_exit"), rows | same | {"accuracy": "accuracy"}),
        "exit_tokens": figures(
            found.get("cpu_exit_decoding"), rows | same | {"bits per byte": "bits_per_byte"}
        ),
    }


def sections() -> dict[Path, dict[str, str]]:
    """What belongs between the markers of each document."""
    from weft.mixers import MIXERS
    from weft.models import DEPTHS, EXITS, RESIDUALS

    found = {DOCS / "mixers" / f"{name}.md": {"traits": traits_table(name)} for name in MIXERS}
    found[DOCS / "mixers.md"] = {"mixers": mixer_table()}
    found[DOCS / "how-to/long-sequences-over-gpus.md"] = {"exchanges": exchange_table()}
    found[DOCS / "patterns.md"] = {"patterns": pattern_table()}
    found[DOCS / "depth.md"] = {
        "residuals": settings_table(RESIDUALS),
        "depths": settings_table(DEPTHS),
    }
    found[DOCS / "early-exit.md"] = {"exits": settings_table(EXITS)}
    found[DOCS / "feedforward.md"] = {"feedforwards": feedforward_table()}
    found[DOCS / "embedding.md"] = {"outputs": output_table()}
    imported = DOCS / "how-to" / "import-checkpoints.md"
    found[imported] = {"architectures": architecture_table(), "refused": refused_table()}
    found[DOCS / "objectives.md"] = {"objectives": objective_table()}
    found[DOCS / "terraformer.md"] = {"projections": projection_table(), "accepts": accepts_list()}
    found[ROOT / "README.md"] = {"limits": limits_list()}
    return found


def result_sections() -> dict[Path, dict[str, str]]:
    """Tables of measured results: all of them in docs/speed.md, a summary in the README."""
    from weft.report.tables.table import bench_tables, to_markdown
    from weft.rows import read

    found = {path.stem: read(path) for path in sorted(RESULTS.glob("*.jsonl"))}
    tables = {
        name: "\n".join(map(to_markdown, bench_tables(rows))).strip()
        for name, rows in found.items()
        if rows[0].get("bench") == "attention"
    }
    tables["layouts"] = layout_table(found["cpu_layouts"])
    tables |= linformer_tables(found["h200_linformer"])
    all_both, all_causal = found["h200_all_bidirectional"], found["h200_all_causal"]
    return {
        DOCS / "speed.md": tables,
        ROOT / "README.md": {
            "results": summary(all_both, all_causal),
            "long": long_table(found["h200_lra_accuracy"], found["h200_lra_text_speed"], all_both),
            "lra_measured": lra_measured(found["h200_lra_accuracy"], found["h200_lra_unfinished"]),
        },
        DOCS / "lra.md": {
            **lra_sections(
                found["h200_lra_accuracy"],
                found["h200_lra_baselines"],
                tomllib.loads((DOCS / "lra_notes.toml").read_text()),
            ),
            "lra_speed": lra_speed_table(found["h200_lra_text_speed"]),
            "lra_memory": lra_memory_table(found["h200_lra_text_speed"]),
            "pathx": curriculum_table(found["h200_pathx"]),
        },
        DOCS / "decode.md": {"decode": decode_section(found.get("decode"))},
        DOCS / "native.md": {"quantise": quantise_table(found["cpu_quantise"])},
        DOCS / "early-exit.md": exit_sections(found),
        DOCS / "pruning.md": {
            "pruning": figures(
                found.get("cpu_pruning"),
                {
                    "kept": "case",
                    "faster": "speedup",
                    "by operations": "expected",
                    "parameters": "parameters",
                },
            )
        },
        DOCS / "sound.md": {"sound_results": cells_table(found.get("cpu_digits"))},
        DOCS / "dna.md": {"dna_results": cells_table(found.get("cpu_promoters"))},
        DOCS / "events.md": {
            "events_speed": events_table(found["cpu_events"]),
            "clients": clients_table(found["cpu_clients"]),
        },
        DOCS / "depth.md": {"depth_time": depth_table(found["cpu_depth"])},
        DOCS / "feedforward.md": {"moe": moe_table(found.get("h200_moe"))},
        DOCS / "terraformer.md": {
            "terraformer_bytes": byte_models(
                found["h200_terraformer_bytes"], found.get("cpu_terraformer_bytes")
            )
        },
        DOCS / "demo.md": demo_sections(found.get("cpu_passages")),
        DOCS / "how-to" / "use-my-model.md": {"onnx": onnx_list(found["onnx_survey"])},
        DOCS / "ablate.md": {"ablate_bytes": ablation(found.get("ablate_bytes"))},
    }


def lra_measured(rows: list[dict[str, Any]], unfinished: list[dict[str, Any]]) -> str:
    """Of which tasks of Long Range Arena there are rows, by their recipes."""
    recipes = sorted(path.stem for path in (ROOT / "src/weft/arena/recipes").glob("lra_*.toml"))
    lines = []
    for name in recipes:
        task = name.removeprefix("lra_")
        done = len({_name(row) for row in rows if row["task"] == task and row["status"] == "done"})
        begun = len({row["label"] for row in unfinished if row["task"] == task})
        what = (
            f"{done} mechanisms" if done else f"none finished, {begun} begun" if begun else "none"
        )
        lines.append(f"  - `{name}`: {what}.")
    return "\n".join(lines)


def newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of trainings that were run again, the last row of each label."""
    return list({row["label"]: row for row in rows}.values())


def demo_sections(rows: list[dict[str, Any]] | None) -> dict[str, str]:
    """The newest row of each mechanism, best first, and what sets the best apart from dense."""
    if not rows:
        return dict.fromkeys(("demo", "demo_why"), "No rows of this are committed.")
    rows = sorted(newest(rows), key=lambda row: -row["test_score"])
    dense = next(row for row in rows if row["dense"])
    at = rows[0]
    rules = {name[6:]: score for name, score in at.items() if name.startswith("rule: ")}
    lines = [
        f"{at['data'][0].upper()}{at['data'][1:]}; {at['device_name']}, {at['threads']} threads, "
        f"torch {at['torch']}, {at['date'][:10]}, one seed. {at['condition']}",
        "",
        "| mechanism | accuracy | updates | updates a second, to dense | parameters |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        ratio = row["steps_per_second"] / dense["steps_per_second"]
        cells = [f"{row['test_score']:.3f}", f"{row['steps']:,}", f"{ratio:.2f}×"]
        lines.append(
            "| " + " | ".join([f"`{row['label']}`", *cells, f"{row['parameters']:,}"]) + " |"
        )
    lines += [
        f"| *{rule}, nothing learned* | {score:.3f} | – | – | – |" for rule, score in rules.items()
    ]
    best = rows[0]
    ratio = best["steps"] / dense["steps"]
    why = (
        f"`{best['label']}` is first with {best['test_score']:.3f}, dense attention has "
        f"{dense['test_score']:.3f}: within the budget it made {best['steps']:,} updates against "
        f"{dense['steps']:,}, {ratio:.1f} times as many."
    )
    return {"demo": "\n".join(lines), "demo_why": why}


def onnx_list(rows: list[dict[str, Any]]) -> str:
    """Which mechanisms have an ONNX graph, by their rows; the newest row of each counts."""
    last = {row["mixer"]: row for row in rows}
    lines = []
    for kind, words in (
        ("any length", "any length"),
        ("one length", "one length, `--length N`"),
        ("none", "none, refused or not written within two minutes"),
    ):
        names = sorted(name for name, row in last.items() if row["exports"] == kind)
        lines.append(f"- {words}: {len(names)} of {len(last)}: {', '.join(names)}.")
    return "\n".join(lines)


def quantise_table(rows: list[dict[str, Any]]) -> str:
    """What rounding costs, part by part."""
    at = rows[0]
    lines = [
        f"{at['model']}, {at['tokens']:,} held-out bytes in windows of {at['window']:,}.",
        "",
        "| rounded | to | size | nats per byte | change |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["part"], row["dtype"], f"{row['bytes'] / 1e6:.1f} MB"]
        cells += [f"{row['loss']:.4f}", f"{row['change']:+.4f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def linformer_tables(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Linformer against both kinds of dense attention: time and memory, by length and rank."""
    found = {(row["measure"], row["length"], row["case"]): row for row in rows}
    lengths = sorted({row["length"] for row in rows})
    ranks = [f"k={k}" for k in (128, 256, 512, 1024, 2048)]

    def cell(base: str, n: int, rank: str) -> str:
        ratios = []
        for way in ("forward", "forward+backward"):
            one, other = found.get((way, n, base)), found.get((way, n, rank))
            if other is None:
                return "–"
            ratios.append(one["median_s"] / other["median_s"])
        memory = one["peak_bytes"] / other["peak_bytes"]
        shown = f"{memory:.2f}" if memory < 10 else f"{memory:.0f}"
        return f"{ratios[0]:.1f} / {ratios[1]:.1f} ({shown})"

    made = {}
    for base in ("unfused", "sdpa"):
        lines = ["| tokens | " + " | ".join(ranks) + " |", "|---" * (1 + len(ranks)) + "|"]
        for n in lengths:
            lines.append(f"| {n:,} | " + " | ".join(cell(base, n, rank) for rank in ranks) + " |")
        made[f"linformer_{base}"] = "\n".join(lines)
    return made


def byte_models(rows: list[dict[str, Any]], decoding: list[dict[str, Any]] | None) -> str:
    """What sparse feed-forwards cost in quality, and what they save in decoding."""
    speed = {row["case"]: row for row in decoding or ()}
    lines = [
        "| model | parameters | bits per byte | CPU, ms per token | time to dense |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        own = speed.get(row["case"])
        cells = [f"{own['ms']:.3f}", f"{own['ratio']:.2f}"] if own else ["–", "–"]
        figures = [f"{row['parameters']:,}", f"{row['bits_per_byte']:.3f}", *cells]
        lines.append("| " + " | ".join([f"`{row['case']}`", *figures]) + " |")
    at = rows[0]
    told = (
        f"{at['data']}; {at['layers']} layers, {at['dim']} wide, {at['steps']:,} updates of "
        f"{at['batch']} × {at['length']:,} bytes, one seed; {at['device_name']}, torch "
        f"{at['torch']}, {sum(row['seconds'] for row in rows) / 60:.0f} minutes in all."
    )
    if decoding:
        on = decoding[0]
        told += f" Decoding: {on['device_name']}, {on['threads']} threads, native, float32."
    return "\n".join([told, "", *lines])


def moe_table(rows: list[dict[str, Any]] | None) -> str:
    """Layers of experts beside the dense layer of equal FLOPs, or that none were measured."""
    if not rows:
        return "These layers have no committed results yet."
    at = rows[0]
    lines = [
        f"{at['tokens']:,} tokens, {at['dim']} wide, {at['hidden']} hidden units, {at['experts']} "
        f"experts, {at['dtype']}; {at['device_name']}, torch {at['torch']}, {at['date'][:10]}.",
        "",
        "| layer | runs | forward + backward | to the dense layer |",
        "|---|---|---|---|",
    ]
    for row in rows:
        figures = [f"{row['median_ms']:.2f} ms", f"{row['ratio']:.2f}×"] if "ratio" in row else None
        cells = figures or [row["error"].partition("\n")[0], "–"]
        lines.append("| " + " | ".join([row["case"], row["mode"], *cells]) + " |")
    return "\n".join(lines)


def decode_section(rows: list[dict[str, Any]] | None) -> str:
    """The tables of `weft bench decode`, or why there are none."""
    from weft.report.tables.decode import decode_parts_table, decode_table
    from weft.report.tables.table import to_markdown

    if rows is None:
        return "Nothing yet: `benchmarks/results/decode.jsonl` is not there."
    tables = (decode_table(rows), decode_parts_table(rows))
    return "\n".join(to_markdown(table) for table in tables).strip()


def lra_sections(
    rows: list[dict[str, Any]], rules: list[dict[str, Any]], notes: dict[str, Any]
) -> dict[str, str]:
    """Our scores beside the paper's, how well they agree, which are far off, which are missing."""
    from weft.arena.experiment.settings import read_settings
    from weft.arena.grid.published import ACCURACY, TASKS
    from weft.report.tables import lra
    from weft.report.tables.table import to_markdown

    tasks = [task for task in TASKS if task != "pathx"]  # every model of the paper failed there
    paper = {(one.mixer, task): one.score(task) for task in tasks for one in ACCURACY if one.mixer}
    lengths = {task: read_settings(f"lra_{task}").experiment.task.length for task in tasks}
    lengths |= {row["task"]: row["length"] for row in rows}  # text is cut to less
    tables = {
        "lra_accuracy": lra.accuracy_table(rows, rules, paper, lengths),
        "lra_agreement": lra.agreement_table(rows, paper, tasks),
        "lra_far": lra.far_table(rows, paper, notes["why"]),
        "lra_missing": lra.missing_table(rows, paper, tasks, notes["minutes"]),
    }
    return {name: to_markdown(table).strip() for name, table in tables.items()}


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of tasks in the order of the benchmark."""
    from weft.arena.grid.published import TASKS

    return sorted(rows, key=lambda row: TASKS.index(row["task"]))


def lra_speed_table(rows: list[dict[str, Any]]) -> str:
    """Updates per second relative to dense attention, by length."""
    return _by_length(rows, "steps_per_second", "updates/s", "{:.3g}", 1, starred=True)


def lra_memory_table(rows: list[dict[str, Any]]) -> str:
    """Peak memory of updates that are not recorded, relative to dense attention, by length."""
    return _by_length(rows, "peak_bytes", "GiB", "{:.2f}", 2**30)


def _by_length(
    rows: list[dict[str, Any]],
    measure: str,
    unit: str,
    form: str,
    size: int,
    starred: bool = False,
) -> str:
    """Dense attention in its unit and the others relative to it, by length.

    A ratio is to the mean of the two dense turns of its own run; of several runs the last counts.
    """
    found: dict[tuple[str, int], tuple[dict[str, Any], float]] = {}
    for run in _runs(rows):
        for n in dict.fromkeys(row["length"] for row in run):
            here = [row for row in run if row["length"] == n]
            dense = [row[measure] for row in here if row["case"] == "full" and measure in row]
            if len(dense) == 2:
                found |= {(row["case"], n): (row, sum(dense) / 2) for row in here}
    lengths = sorted({n for _, n in found})
    lines = ["| mechanism | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |"]
    lines.append("|---|" + "---|" * len(lengths))
    own = (form.format(found["full", n][1] / size) for n in lengths)
    lines.append(f"| `full`, {unit} | " + " | ".join(own) + " |")
    names = [name for name in dict.fromkeys(name for name, _ in found) if name != "full"]

    def cell(name: str, n: int) -> str:
        row, base = found.get((name, n), (None, 0.0))
        if row is None:
            return "–"
        if row.get("error"):
            kinds = {"causal": "causal only", "out of memory": "out of memory"}
            return next((kinds[word] for word in kinds if word in row["error"]), "failed")
        star = "\\*" if starred and row["mode"] != "graph" else ""
        return f"{row[measure] / base:.2f}×{star}"

    last = {name: found.get((name, lengths[-1]), ({}, 0.0))[0] for name in names}
    order = sorted(names, key=lambda name: -last[name].get("steps_per_second", 0))
    lines += [
        f"| `{name}` | " + " | ".join(cell(name, n) for n in lengths) + " |" for name in order
    ]
    return "\n".join(lines)


LONG = (  # on README's first screen: dense attention, the sparse and linear ones of three tasks
    "full", "longformer", "bigbird", "sparse_transformer", "linear_transformer", "performer",
)  # fmt: skip


def long_table(
    scores: list[dict[str, Any]], trainings: list[dict[str, Any]], layers: list[dict[str, Any]]
) -> str:
    """Quality, speed and memory beside dense attention: accuracies, updates, layers."""
    tasks = ("listops", "text", "image")
    right = {(r["label"], r["task"]): r["test_score"] for r in scores if r["status"] == "done"}
    updates, memory = (
        _cells(table(trainings), -1) for table in (lra_speed_table, lra_memory_table)
    )
    layer = {
        (r["case"], r["measure"]): r["ratio_to_dense"]
        for r in layers
        if r["length"] == 65_536 and r.get("ratio_to_dense")
    }
    lines = [
        "| mechanism | ListOps, 2,000 | Text, 1,000 | Image, 1,024 | update, 16,384 | memory | "
        "layer, 65,536 | memory |",
        "|---|" + "---:|" * 7,
    ]
    for name in LONG:
        found = [f"{100 * right[name, task]:.1f}" for task in tasks]
        found += ["1.00×"] * 2 if name == "full" else [updates[name], memory[name]]
        found.append(f"{1 / layer[name, 'forward+backward']:.1f}×")
        found.append(f"{layer[name, 'memory']:.2f}×")
        lines.append(f"| `{name}` | " + " | ".join(found) + " |")
    return "\n".join(lines)


def _cells(table: str, column: int) -> dict[str, str]:
    """One column of a Markdown table by the name in the first, without its marks."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0].split("`")[1]: row[column].replace("\\*", "") for row in rows}


def _runs(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows as they were measured together: a run begins with its first turn at any length."""
    runs: list[list[dict[str, Any]]] = []
    for row in rows:
        if row["turn"] == 0:
            runs.append([])
        runs[-1].append(row)
    return runs


def curriculum_table(rows: list[dict[str, Any]]) -> str:
    """The phases of one training, when each ended and what it scored; the test at last."""
    run, *rest = rows
    lines = ["| phase | steps | seconds, from the start | validation |", "|---|---:|---:|---:|"]
    begin = 0
    for at, name in enumerate(run["phases"]):
        last = [row for row in rest if row["phase"] == at and row["kind"] == "valid"][-1]
        steps = last["step"] - begin
        lines.append(f"| {name} | {steps:,} | {last['seconds']:,.0f} | {last['score']:.3f} |")
        begin = last["step"]
    scored = next(row for row in rest if (row["kind"], row["step"]) == ("valid", run["best_step"]))
    share = run["test_accuracy"]
    lines += [
        "",
        f"Best by validation: step {run['best_step']:,}, after {scored['seconds']:,.0f} seconds. "
        f"On {run['test_count']:,} images of the test split it is right in **{share:.2%}**; one "
        f"answer to all is right in {run['majority']:.1%}, brightness alone in "
        f"{run['brightness']:.1%}. {run['parameters'] / 1e6:.2f} million parameters, "
        f"{run['peak_bytes'] / 2**30:.1f} GiB, {run['device_name']}.",
    ]
    return "\n".join(lines)


SHOWN = (  # in the README, where they can: one or two of each family, losers among them
    "full", "sliding_window", "longformer", "bigbird", "block_local", "sparse_transformer", "axial",
    "reformer", "routing", "sinkhorn", "nsa", "linformer", "nystromformer", "memory_compressed",
    "perceiver", "linear_transformer", "performer", "fnet", "light_convolution", "sru",
    "adaptive_span", "blockbert",
)  # fmt: skip


def summary(both: list[dict[str, Any]], causal: list[dict[str, Any]]) -> str:
    """How many times faster than dense, forward and backward, both ways and causal; the memory.

    Of a case that was measured again the last row counts.
    """
    lengths = sorted({row["length"] for row in both})
    heads = [f"{n:,}{way}" for way in ("", ", causal") for n in lengths]
    lines = ["| mechanism | " + " | ".join(heads) + f" | memory at {lengths[-1]:,} |"]
    lines.append("|---|" + "---:|" * (len(heads) + 1))
    ratios = [
        {(row["case"], row["measure"], row["length"]): row.get("ratio_to_dense") for row in rows}
        for rows in (both, causal)
    ]

    def faster(found: dict[tuple[str, str, int], float | None], name: str, n: int) -> str:
        ratio = found.get((name, "forward+backward", n))
        return f"{1 / ratio:.2f}×" if ratio else "–"

    for name in SHOWN:
        cells = [faster(found, name, n) for found in ratios for n in lengths]
        memory = next((m for f in ratios if (m := f.get((name, "memory", lengths[-1])))), None)
        cells.append(f"{memory:.2f}×" if memory else "–")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def layout_table(rows: list[dict[str, Any]]) -> str:
    """How long layouts take."""
    lines = ["| pattern | tokens | layout | lowered to parts | memory |", "|---|---|---|---|---|"]
    for row in rows:
        lines.append(
            f"| `{row['pattern']}` | {row['tokens']:,} | {row['layout_ms']:.1f} ms | "
            f"{row['lower_ms']:.1f} ms | {row['growth_mib']:.0f} MiB |"
        )
    return "\n".join(lines)


def filled(text: str, name: str, content: str) -> str:
    """The document with new content between the markers of one name."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"a document needs {begin} and, after it, {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def draw(name: str, folder: Path = DOCS / "pictures") -> Path:
    """Draw one picture: what `weft pattern EXPR --length N --png F` draws, half as large."""
    from weft.patterns import pattern, picture

    what = PICTURES[name]
    figure = picture.draw(pattern(what.pattern), what.length, heads=what.heads, layers=what.layers)
    path = folder / f"{name}.png"
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Title": what.title, "Software": None})
    return path


def draw_results() -> None:
    """Plot the time and memory of every mechanism over length, and how tasks were learned."""
    from weft.report.charts.plots import draw_bench, draw_curriculum, draw_learning
    from weft.rows import read

    run, *rest = read(RESULTS / "h200_pathx.jsonl")
    plots = {
        "speed_h200": draw_bench(read(RESULTS / "h200_bidirectional_graph.jsonl")),
        "pathx": draw_curriculum(rest, run["phases"]),
        "lra_accuracy": draw_learning(in_order(read(RESULTS / "h200_lra_curves.jsonl"))),
    }
    for name, figure in plots.items():
        path = DOCS / "plots" / f"{name}.png"
        figure.savefig(path, dpi=DOTS_PER_INCH, bbox_inches="tight")


def measured() -> dict[str, list[dict[str, Any]]]:
    """Speed and accuracy beside dense attention, for `weft.advise`: a few numbers of the rows."""
    from weft.rows import read

    found = {path.stem: read(path) for path in sorted(RESULTS.glob("*.jsonl"))}
    layers = ("h200_all_bidirectional", "h200_all_causal", "cpu_bidirectional", "cpu_causal")
    speed = [fact for name in layers for fact in _layer_speeds(found[name])]
    # Time ends a training of the demo: its accuracy is no mechanism's beside as many updates.
    speed += _training_speeds(newest(found["cpu_passages"]))
    return {"speed": speed, "quality": _accuracies(found["h200_lra_accuracy"])}


def _layer_speeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Forward and backward of a layer; of a case measured again the last row counts."""
    from weft.mixers import MIXERS

    last = {
        (row["case"], row["length"]): row
        for row in rows
        if row["measure"] == "forward+backward" and row.get("ratio_to_dense")
    }
    return [
        _fact(row, row["case"], row["length"], 1 / row["ratio_to_dense"], "layer")
        for row in last.values()
        if row["case"] in MIXERS and row["case"] != "full"
    ]


def _training_speeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Updates a second of whole trainings of one mechanism, to those of dense attention."""
    from weft.mixers import MIXERS

    dense = {row["length"]: row["steps_per_second"] for row in rows if row["dense"]}
    return [
        _fact(row | {"causal": False}, _name(row), row["length"],
              row["steps_per_second"] / dense[row["length"]], "training")
        for row in rows
        if not row["dense"] and row["label"] in MIXERS
    ]  # fmt: skip


def _fact(row: dict[str, Any], mixer: str, length: int, faster: float, what: str) -> dict[str, Any]:
    place = {"device": row["device"], "causal": row["causal"], "length": length}
    return {"mixer": mixer, **place, "faster": round(faster, 3), "what": what}


def _accuracies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean test accuracy over seeds by mechanism and task, beside dense attention's."""
    from statistics import mean

    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["status"] == "done":
            found.setdefault((row["task"], _name(row)), []).append(row["test_score"])
    return [
        {"mixer": mixer, "task": task, "score": round(mean(scores), 4),
         "dense": round(mean(found[task, "full"]), 4)}
        for (task, mixer), scores in found.items()
        if mixer != "full"
    ]  # fmt: skip


def _name(row: dict[str, Any]) -> str:
    """A mechanism without its settings."""
    return row["mixer"].partition("(")[0]


def measured_text() -> str:
    """The data file of `weft.advise`."""
    return json.dumps(measured(), indent=1, ensure_ascii=False) + "\n"


def written() -> dict[Path, dict[str, str]]:
    """All generated sections of each document."""
    found: dict[Path, dict[str, str]] = {}
    for part in (sections(), result_sections()):
        for path, contents in part.items():
            found.setdefault(path, {}).update(contents)
    return found


def main() -> None:
    """Write all documents and, unless told `--text`, draw all pictures."""
    from weft.use.tour import notebook

    MEASURED.write_text(measured_text())
    (DOCS / "tour.ipynb").write_text(notebook())
    for path, contents in written().items():
        text = path.read_text()
        for name, content in contents.items():
            text = filled(text, name, content)
        path.write_text(text)
    if "--text" not in sys.argv:
        for name in PICTURES:
            draw(name)
        draw_results()


if __name__ == "__main__":
    main()
