"""Cases of learning: the losses of objectives, and short trainings from settings to weights."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from hashing import Named, built, ids, padding, seed_of, weights
from model_cases import VOCAB, encoder
from safetensors.torch import load_file
from weft_names import OBJECTIVES, Batch, Head, Progress, experiment, penalties, run_of, train

TOKENS = 22
OBJECTIVE_SPECS = (
    *("causal_lm", "classify", "match", "mpnet", "permuted_lm", "pixel_lm", "regress"),
    *("conditional_masked_lm", "electra(rate=0.3, share=0.5)", "masked_lm(rate=0.3)"),
    *("pixel_lm(kind='masked', rate=0.3)", "sequence_to_sequence"),
    *("span_corruption(rate=0.4, mean=2.0, sentinels=8)", "early_exit"),
    *("early_exit(of=causal_lm)", "early_exit(of=classify, reads='below', weights='depth')"),
)
# Of a trained teacher, of DNA, of sound: see their own tests.
UNTESTED = {"distill", "both_strands", "masked_units"}


def objectives() -> Named:
    """The loss of each objective, and its gradients."""
    for spec in OBJECTIVE_SPECS:

        def case(spec=spec) -> dict:
            objective = OBJECTIVES.parse(spec)
            seed = seed_of("objective", objective.name)
            config = objective.build(encoder(), Head(classes=3))
            model = built(config.build, seed, torch.float32, 0.03)
            batch = Batch(x=ids(2, TOKENS, seed=seed), valid=padding(TOKENS).sort(1)[0].flip(1))
            batch = dataclasses.replace(batch, x=batch.x % (VOCAB - 1), y=torch.tensor([1, 0]))
            if objective.name in ("match", "sequence_to_sequence", "conditional_masked_lm"):
                second = ids(2, 9, seed=seed + 1) % (VOCAB - 1)
                batch = dataclasses.replace(batch, second=second, second_valid=padding(9).fill_(1))
            torch.manual_seed(seed)
            loss = objective.loss(model, batch, torch.Generator().manual_seed(seed))
            extra = penalties(model)
            total = loss.total if extra is None else loss.total + extra
            found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
            return {
                "weights": weights(model),
                "output": [loss.total, loss.count, loss.right],
                "gradients": found,
            }

        yield spec, case


# As short as settings files can be; each takes about a second.
COMMON = """
[model]
layers = 2
dim = 16
heads = 2
dropout = 0.1
[training]
steps = 20
batch = 8
lr = 3e-3
warmup = 3
evaluate_every = 10
log_every = 2
seed = 5
device = "cpu"
"""
LISTOPS = '{spec = "listops(length=60, depth=4, train=200, valid=40, test=40)"}'
RUNS = {
    "listops": f'task = {LISTOPS}\nmixer = "longformer(window=9)"\n{COMMON}',
    "listops, accumulated": f'task = {LISTOPS}\nmixer = "full"\n{COMMON}accumulate = 3\n',
    "listops, float64": f'task = {LISTOPS}\nmixer = "performer"\n{COMMON}precision = "float64"\n',
    "reversal": f'task = {{spec = "reversal(length=8, train=200, valid=40)"}}\n{COMMON}',
    "phases": f"""
task = {LISTOPS}
mixer = "sliding_window(window=3)"
{COMMON}
[[phase]]
steps = 6
objective = "masked_lm(rate=0.3)"
length = 40
[[phase]]
steps = 6
length = 40
[[phase]]
steps = 8
lr = 1e-3
mixer = {{window = 9}}
""",
}
KEPT = ("kind", "step", "phase", "tokens", "loss", "score", "lr")


class Rows(Progress):
    """Keeps the rows of metrics, without what a clock says."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def row(self, row: dict[str, Any]) -> None:
        self.rows.append([(name, row[name]) for name in KEPT if name in row])


def trainings() -> Named:
    """From the text of a settings file to the final weights, as `weft train` goes."""
    for name, text in RUNS.items():

        def case(text=text) -> dict:
            with tempfile.TemporaryDirectory() as folder:
                heard = Rows()
                # A generated task is made anew: what an earlier version cached proves nothing.
                with mock.patch.dict(os.environ, {"WEFT_CACHE": f"{folder}/cache"}):
                    run = run_of(experiment(tomllib.loads(text)))
                train(run, f"{folder}/run", heard)
                last = load_file(Path(folder) / "run" / "last" / "model.safetensors")
            return {
                "weights": [part for key in sorted(last) for part in (key, last[key])],
                "output": heard.rows,
            }

        yield name, case
