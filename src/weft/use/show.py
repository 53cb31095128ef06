"""What a trained model is, how good, on which data, and how to use it, as text for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weft.arena.experiment.results import read_scores
from weft.errors import WeftError
from weft.events.encoders import encoders_of
from weft.files import read_object
from weft.metrics import clearly_better, metric
from weft.models.saving import model_folder
from weft.models.usage.inputs import reads_of
from weft.models.usage.multimodal import MultimodalInput
from weft.models.usage.record import Usage, read_usage
from weft.rows import Row

MOST_LABELS = 20


def show(run: Path) -> str:
    """Several lines about a run or a saved model; its weights are not loaded."""
    folder = model_folder(run)
    config = read_object(folder / "config.json", "model")
    usage = read_usage(folder)
    lines = [f"model    {_model(config['model'])}"]
    if usage is None:
        lines.append("         saved without labels and tokenizer (weft 0.1.0, or untrained)")
        return "\n".join(lines)
    lines += _what(usage) + _training(run) + _use(run, usage)
    return "\n".join(lines)


def score_lines(found: Row) -> list[str]:
    """The scores of a split, and those of trivial rules."""
    name, value = found["metric"], found["score"]
    shown = "not finite" if value is None else f"{value:.4f}"
    whole = found.get("rows of the split")
    count = f"{found['count']:,}" + (f" of {whole:,}" if whole is not None else "")
    sampled = ", a sample that fits the minutes" if whole is not None else ""
    lines = [f"{found['split']:8} {name} {shown} on {count} items{sampled}"]
    lines[0] += f" ({metric(name).direction})"
    if "macro F1" in found:
        lines[0] += f"; macro F1 {found['macro F1']:.4f}, "
        lines[0] += f"calibration error {found['calibration error']:.4f}"
        lines += _class_lines(found["classes"]) + _confusion_lines(found["classes"])
    if found.get("gini") is not None:
        errors = f"± {found['gini error']:.4f} by Hanley and McNeil"
        if "gini bootstrap error" in found:
            errors += f", ± {found['gini bootstrap error']:.4f} by rows drawn again"
        lines.append(f"         Gini {found['gini']:.4f} {errors}; AUC {found['AUC']:.4f}")
    if "mean absolute error" in found:
        lines += _number_lines(found)
    rules = found.get("trivial rules", {})
    lines += [f"         {rule} (nothing learned): {score:.4f}" for rule, score in rules.items()]
    if rules and value is not None and not clearly_better(name, value, rules, found["count"]):
        lines.append("         NOTHING WAS LEARNED: no trivial rule is clearly beaten")
    return lines


def _number_lines(found: Row) -> list[str]:
    r2 = "–" if found["R²"] is None else f"{found['R²']:.3f}"
    absolute, squared = found["mean absolute error"], found["root mean squared error"]
    said = f"mean absolute error {absolute:.4g}, root mean squared error {squared:.4g}; R² {r2}"
    return [f"         in the unit of the label: {said}"]


def _class_lines(classes: list[Row]) -> list[str]:
    """Precision, recall and what each class is most often taken for."""
    lines = []
    for own in sorted(classes, key=lambda own: own["f1"])[:MOST_LABELS]:
        wrong = {label: n for label, n in own["predicted as"].items() if label != str(own["label"])}
        worst = max(wrong, key=wrong.__getitem__, default=None)
        taken = f", taken for {worst} {wrong[worst]:,} times" if worst is not None else ""
        lines.append(
            f"         {own['label']}: precision {own['precision']:.3f}, recall "
            f"{own['recall']:.3f}, F1 {own['f1']:.3f} on {own['count']:,}{taken}"
        )
    return lines


def _confusion_lines(classes: list[Row]) -> list[str]:
    """The confusion matrix, where it fits a terminal."""
    names = [str(own["label"]) for own in classes]
    width = max(7, *(len(name) + 2 for name in names)) if names else 0
    if not 2 <= len(names) <= 10 or width * (len(names) + 1) > 90:
        return []
    lines = ["         confusions, true classes down, predicted ones across"]
    lines.append("         " + " " * width + "".join(name.rjust(width) for name in names))
    for own in classes:
        counts = "".join(f"{own['predicted as'].get(name, 0):,}".rjust(width) for name in names)
        lines.append(f"         {str(own['label']).ljust(width)}{counts}")
    return lines


def _model(config: dict[str, Any]) -> str:
    """Kind, mechanism and size of a model, from the tables of its config."""
    trunk = _inside(config, "trunk")
    stack = _inside(trunk, "stack")
    mixer, frame = stack.get("mixer"), _inside(stack, "frame")
    several = mixer if isinstance(mixer, list) else [mixer]
    names = dict.fromkeys(str(one.get("name")) for one in several if isinstance(one, dict))
    sizes = [f"width {frame['dim']}"] if "dim" in frame else []
    sizes += [f"{frame['heads']} heads"] if "heads" in frame else []
    sizes += [f"order {stack['order']}"] if "order" in stack else []
    head = f"{config.get('name', 'model')} on {trunk.get('name', 'a trunk')}"
    return ", ".join([f"{head}, {' and '.join(names) or 'perceiver'}", *sizes])


def _inside(table: Any, name: str) -> dict[str, Any]:
    """A table of a config; empty where there is none."""
    found = table.get(name, {}) if isinstance(table, dict) else table
    if not isinstance(found, dict):
        raise WeftError(f"config.json describes no model: {name} is a table; got {found!r:.60}")
    return found


def _what(usage: Usage) -> list[str]:
    lines = [f"task     {usage.task}: {usage.kind}", f"data     {usage.data}"]
    if usage.labels:
        few = ", ".join(map(str, usage.labels[:MOST_LABELS]))
        more = len(usage.labels) - MOST_LABELS
        lines.append(f"labels   {few}{f' and {more} more' if more > 0 else ''}")
    if usage.events:
        return [*lines, *_events(usage)]
    if usage.pictures:
        size = f"{usage.pictures.get('height')} × {usage.pictures.get('width')}"
        return [*lines, f"pictures {size} as {usage.pictures.get('form')}, {usage.length:,} tokens"]
    if usage.modalities:
        return [*lines, f"columns  {', '.join(_columns(usage))}"]
    unit = "bytes" if usage.tokens == "bytes" else "tokens"
    lines.append(f"text     as {usage.tokens}, longer than {usage.length:,} {unit} is cut")
    return lines


def _columns(usage: Usage) -> tuple[str, ...]:
    """Of rows of several kinds."""
    reads = reads_of(usage)
    return reads.columns if isinstance(reads, MultimodalInput) else ()


def _events(usage: Usage) -> list[str]:
    """What is read of each event, by the names of the training data."""
    encoders = encoders_of(usage.events)
    names = encoders.columns
    pairs = zip(names.categories, encoders.codes, strict=True)
    read = [f"{name} ({len(each.values):,} values)" for name, each in pairs]
    read += [
        f"{name} ({each.scale})" for name, each in zip(names.numbers, encoders.numbers, strict=True)
    ]
    ends = f", before {names.until}" if names.until else ""
    return [
        f"events   of each {names.id} by {names.time}{ends}, the last {usage.length:,}",
        f"columns  {', '.join(read)}",
    ]


def _training(run: Path) -> list[str]:
    """How the training went, where this is its folder."""
    if (run / "config.json").is_file():
        return []
    if not (run / "done.json").is_file():
        return ["training is not finished: this is the best model so far; the same call goes on"]
    done = read_object(run / "done.json", "best_score", "steps", "seconds")
    best = done["best_score"]
    valid = "no validation" if best is None else f"best validation {best:.4f}"
    lines = [f"training {done['steps']:,} steps in {done['seconds']:.0f} s, {valid}"]
    scores = read_scores(run)
    return lines + (score_lines(scores) if scores else [f"test     not scored: weft eval {run}"])


def _use(run: Path, usage: Usage) -> list[str]:
    if usage.kind == "language" and usage.pictures:
        return [
            f"use it   weft generate {run} --samples 8",
            f"         weft generate {run} --complete FILE.png",
        ]
    if usage.kind == "language":
        return [f"use it   weft generate {run} --prompt TEXT"]
    if usage.modalities:
        asked = ", ".join(_columns(usage))
        return [f"use it   weft predict {run} FILE   (a file with {asked})"]
    if usage.events:
        return [
            f"use it   weft predict {run} --events FILE   (Parquet or CSV with the same columns)",
            f"         weft.predict_events(weft.load({str(run)!r}), FILE, proba=True)",
        ]
    if usage.kind not in ("classify", "match", "regress") or (
        usage.tokens == "none" and not usage.pictures
    ):
        return [f"use it   weft.load({str(run)!r})(ids)"]
    names = ("text", "second", "global_text")
    asked = [usage.columns[name] for name in names if name in usage.columns] or ["text"]
    texts = f"a file with {' and '.join(asked)}"
    pair = "[(first, second), ...]" if usage.is_pair else "texts"
    return [
        f"use it   weft predict {run} FILE   ({texts})",
        f"         weft.load({str(run)!r}).predict({pair}, proba=True)",
    ]
