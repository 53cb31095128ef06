"""DNA from FASTA files: a motif on either strand, and a model that no strand changes."""

from pathlib import Path

import numpy as np

import weft
from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment
from weft.training import train

MOTIF = "TATAAT" * 2
OTHER = str.maketrans("ACGT", "TGCA")
rng = np.random.default_rng(0)


def sequence(motif):
    """60 random bases, with the motif at some place or not."""
    found = "".join(rng.choice(list("ACGT"), 60))
    if motif:
        place = rng.integers(60 - len(MOTIF))
        found = found[:place] + MOTIF + found[place + len(MOTIF) :]
    return found[::-1].translate(OTHER) if rng.random() < 0.5 else found


for name in ("promoters", "others"):
    records = [f">{name}{i}\n{sequence(name == 'promoters')}" for i in range(200)]
    Path(f"{name}.fa").write_text("\n".join(records))

own = experiment(
    {
        "task": {"name": "dna", "data": ["promoters.fa", "others.fa"], "k": 3},
        "objective": "both_strands",
        "model": {
            "trunk": {
                "name": "encoder",
                "embedding": {"positions": "none"},
                "stack": {"frame": {"dim": 32, "heads": 2, "positions": "rope"}, "order": "sf"},
            },
            "head": {"pool": "max"},
        },
        "mixer": "sliding_window(window=8)",
        "training": {"steps": 80, "batch": 30, "lr": 5e-3, "warmup": 10, "device": "cpu"},
    }
)
outcome = train(run_of(own), "runs/dna")
print(f"right on {outcome.best_score:.0%} of the sequences held out for validation")

model = weft.load("runs/dna")
one = sequence(True)
both = model.predict([one, one[::-1].translate(OTHER)], proba=True)
print(both)  # the same for both strands
