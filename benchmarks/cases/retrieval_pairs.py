"""Why is Retrieval not learned: the data, or the matcher and its rates? Three looks on a CPU.

    python benchmarks/cases/retrieval_pairs.py counts --folder FOLDER
    python benchmarks/cases/retrieval_pairs.py vectors --folder FOLDER
    python benchmarks/cases/retrieval_pairs.py learn --pool first --lr 1e-3 --steps 2000

`counts`: the cosine of two documents' counts of 1 to 6 bytes decides whether one cites the other;
the threshold comes from 5,000 training pairs, and each document's share of citations is tried as
well. `vectors`: how much of what the untrained matcher
(Linformer) reads of a document depends on the document. `learn`: the matcher of the recipe, 2
layers of 32, on 2,000 pairs of 32 tokens that share a rare token or not; `--lr release` is the
recipe's schedule. They print the figures of docs/lra.md.
"""

import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F

from weft.arena.experiment.runs import model_of
from weft.arena.experiment.settings import read_settings
from weft.arena.tasks import Retrieval
from weft.arena.tasks.base import best_threshold

SAMPLE = 5_000  # training pairs that set a threshold
HASHED = 8_192  # counts of several bytes share this many places
LENGTH, COMMON, MARKS = 32, 200, 16  # tokens of a document, ordinary ids, rare ids
PAIRS, HELD_OUT = 2_000, 500
SIZES = ("layers=2", "dim=32", "feedforward='dense(hidden=64)'", "head.hidden=64")


def counts(folder: str) -> None:
    """Print how often cosines of counts are right on test pairs."""
    task = Retrieval(folder=folder)
    train, test = task.load("train"), task.load("test")
    print(f"documents one by one: {100 * alone(train, test):.1f} % of {len(test)} test pairs")
    for width in (1, 2, 3, 4, 6):
        given = [(train, np.arange(min(SAMPLE, len(train)))), (test, np.arange(len(test)))]
        (own, labels), (new, truth) = (cosines(*each, width) for each in given)
        right = (new >= best_threshold(own, labels)) == truth
        print(f"{width} bytes: {100 * right.mean():.1f} % of {len(truth)} test pairs")


def alone(train, test) -> float:
    """Share of test pairs that documents give away one by one: how often each is in a citation."""
    positive: dict[bytes, list[int]] = {}
    for rows in (train.rows, train.second):
        for i, label in enumerate(train.labels):
            positive.setdefault(rows[i].tobytes(), []).append(int(label))
    rates = {text: sum(labels) / len(labels) for text, labels in positive.items()}

    def told(examples, index) -> np.ndarray:
        sides = (examples.rows, examples.second)
        return np.array([sum(rates.get(rows[i].tobytes(), 0.5) for rows in sides) for i in index])

    sample = np.arange(min(SAMPLE, len(train)))
    threshold = best_threshold(told(train, sample), train.labels[sample])
    return float(((told(test, np.arange(len(test))) >= threshold) == test.labels).mean())


def cosines(examples, index: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """(pairs,) cosines of centred log counts, and labels."""
    sides = [[counted(rows[i], width) for i in index] for rows in (examples.rows, examples.second)]
    table = np.log1p(np.stack(sides))  # (2, pairs, places)
    table -= table.mean((0, 1))
    if width == 1:
        table /= table.std((0, 1)) + 1e-6
    table /= np.linalg.norm(table, axis=-1, keepdims=True)
    return (table[0] * table[1]).sum(-1), examples.labels[index]


def counted(document: np.ndarray, width: int) -> np.ndarray:
    """(places,) how often each run of `width` bytes occurs, hashed where there are many."""
    runs = np.lib.stride_tricks.sliding_window_view(document.astype(np.uint64), width)
    places = runs @ np.uint64(257) ** np.arange(width, dtype=np.uint64)
    if width > 1:
        places = (places * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(HASHED)
    size = 256 if width == 1 else HASHED
    return np.bincount(places.astype(np.int64), minlength=size).astype(np.float32)


def vectors(folder: str, pairs: int = 300) -> None:
    """Print the share of the CLS vector that depends on the document, and what it tells."""
    torch.manual_seed(0)
    found = read_settings("lra_retrieval", [f"task=\"retrieval(folder='{folder}')\""])
    trunk = model_of(found.mixers["linformer"]).build().eval().trunk
    test, read = Retrieval(folder=folder).load("test"), []
    for first in range(0, pairs, 4):
        batch = test.batch(np.arange(first, min(first + 4, pairs)))
        with torch.no_grad():
            sides = ((batch.x, batch.valid), (batch.second, batch.second_valid))
            read.append(torch.stack([trunk.read(x, valid=valid)[0][:, 0] for x, valid in sides]))
    vector = torch.cat(read, 1)  # (2, pairs, c)
    mean = vector.mean((0, 1))
    share = (vector - mean).norm(dim=-1).mean() / mean.norm()
    cosine, half = torch.cosine_similarity(*(vector - mean), dim=-1).numpy(), pairs // 2
    threshold = best_threshold(cosine[:half], test.labels[:half])
    right = (cosine[half:] >= threshold) == test.labels[half:pairs]
    print(
        f"{100 * share:.1f} % of the vector; cosine right in {100 * right.mean():.1f} % of {half}"
    )


def made_pairs(count: int, times: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Two documents (count, LENGTH) and whether both hold the same rare token, `times` each."""
    label = torch.arange(count) % 2
    first = torch.randint(MARKS, (count,), generator=generator)
    other = (first + 1 + torch.randint(MARKS - 1, (count,), generator=generator)) % MARKS
    marks = (first, torch.where(label == 1, first, other))
    return *(document(mark, times, generator) for mark in marks), label


def document(marks: torch.Tensor, times: int, generator: torch.Generator) -> torch.Tensor:
    """Ids (count, LENGTH): common tokens by Zipf's law, the row's rare one at random places."""
    zipf = (1 / (torch.arange(COMMON) + 3.0)).expand(len(marks), -1)
    ids = torch.multinomial(zipf, LENGTH, replacement=True, generator=generator)
    places = torch.rand(len(marks), LENGTH, generator=generator).argsort(1)[:, :times]
    return ids.scatter(1, places, (COMMON + marks)[:, None].expand(-1, times))


def rate(step: int, lr: str) -> float:
    """The recipe's schedule, or a constant rate after 100 updates."""
    if lr == "release":
        return 0.05 * min(1.0, step / 8000) / math.sqrt(max(step, 8000))
    return float(lr) * min(1.0, step / 100)


def learn(pool: str, lr: str, steps: int, times: int = 3, every: int = 250) -> float:
    """Train, print the accuracy on new pairs now and then, and return the last."""
    torch.manual_seed(0)
    given = [*SIZES, f"pool={pool}", f"registers={int(pool == 'first')}"]
    changes = [f"task='retrieval(length={LENGTH})'", *(f"model.{each}" for each in given)]
    model = model_of(read_settings("lra_retrieval", changes).mixers["full"]).build()
    generator = torch.Generator().manual_seed(1)
    train, test = (made_pairs(n, times, generator) for n in (PAIRS, HELD_OUT))
    adam = {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.1}
    optimiser = torch.optim.AdamW(model.parameters(), lr=1.0, **adam)
    right = 0.0
    for step in range(1, steps + 1):
        batch = torch.randint(PAIRS, (32,), generator=generator)
        first, second, label = (each[batch] for each in train)
        loss = F.cross_entropy(model.train()(first, second), label)
        optimiser.param_groups[0]["lr"] = rate(step, lr)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % every == 0 or step == steps:
            with torch.no_grad():
                right = (model.eval()(*test[:2]).argmax(1) == test[2]).float().mean().item()
            print(f"{pool}, lr {lr}, update {step}: {100 * right:.1f} % of new pairs", flush=True)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("look", choices=("counts", "vectors", "learn"))
    parser.add_argument("--folder", default="", help="of the pairs; default $WEFT_DATA/retrieval")
    parser.add_argument("--pool", default="first", choices=("first", "mean"))
    parser.add_argument("--lr", default="1e-3", help="a rate, or release")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--times", type=int, default=3, help="rare tokens in a document")
    args = parser.parse_args()
    if args.look == "counts":
        counts(args.folder)
    elif args.look == "vectors":
        vectors(args.folder)
    else:
        learn(args.pool, args.lr, args.steps, args.times)


if __name__ == "__main__":
    main()
