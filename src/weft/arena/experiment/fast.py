"""The settings under which a GPU trains an experiment fastest: `--fast`.

    training   products in bfloat16; updates compiled, and recorded if no mixer changes between them
    model      rows of the last layer that the head does not read are left out (`trimmed`)

What is learned is the same but for rounding and for what is drawn at random.
"""

from __future__ import annotations

from dataclasses import replace

from weft.arena.experiment.runs import model_of
from weft.arena.experiment.settings import Experiment
from weft.errors import WeftError
from weft.mixers import Mixer
from weft.training.settings import device_named

PREFETCHED = 4  # batches: recorded updates are short


def for_speed(one: Experiment) -> Experiment:
    """The experiment for a GPU in a hurry."""
    training = one.training
    if device_named(training.device).type != "cuda":
        raise WeftError(
            "fast is for a GPU: half precision and recorded updates gain nothing on a CPU; got "
            f"device={training.device!r}, so leave --fast out"
        )
    training = replace(
        training,
        precision="bfloat16",
        compile=True,
        graph=_stays(one),
        prefetch=max(training.prefetch, PREFETCHED),
    )
    return replace(trimmed(one), training=training)


def trimmed(one: Experiment) -> Experiment:
    """The experiment without rows that are unused; unchanged where all are needed."""
    head = replace(one.model.head, trimmed=True)
    lean = replace(one, model=replace(one.model, head=head))
    if one.phase:  # each may have a model of its own
        return one
    try:
        return lean if getattr(model_of(lean), "trimmed", False) else one
    except WeftError:
        return one


def _stays(one: Experiment) -> bool:
    """Whether no mixer changes between updates, so that a recorded one stays right."""
    mixers = [m for m in model_of(one).build().modules() if isinstance(m, Mixer)]
    return not any(mixer.changes for mixer in mixers)
