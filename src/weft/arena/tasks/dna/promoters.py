"""Promoters: does transcription of a gene begin in this sequence? Short ones, of four organisms.

Sequences as published with CNNProm: 251 bases around the start of transcription of Arabidopsis and
mouse genes, 81 of E. coli and B. subtilis, against sequences from inside genes. How the published
figures were split is not known exactly; here, of each class 20 % are test and 10 % validation, by a
hash, and equal sequences, or one and the other strand, stay together.

Paper: Umarov and Solovyev 2017, https://doi.org/10.1371/journal.pone.0171410
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from weft.arena.data.examples import Examples
from weft.arena.tasks import readers
from weft.arena.tasks.base import TASKS, Split
from weft.arena.tasks.dna.base import DnaTask
from weft.arena.tasks.dna.sequences import Labelled, Sequence, examples_of, labelled
from weft.arena.tasks.from_files import FromFiles
from weft.dna.bases import bases
from weft.errors import WeftError, suggest

EXPECTED = (
    'promoters.jsonl: lines of {"organism": "mouse", "kind": "tata", "label": 1, "seq": "ACGT"}, '
    "label 0 for sequences that are no promoters"
)
TEST_SHARE, VALID_SHARE = 0.2, 0.1


@TASKS.register("promoters")
@dataclass(frozen=True, kw_only=True)
class Promoters(FromFiles, DnaTask):
    """Tell promoters of an organism from other sequences, 81 or 251 bases long."""

    organism: str = "arabidopsis"
    kinds: tuple[str, ...] = ()  # of promoters, such as tata; none: all of the organism
    folder: str = ""  # default: $WEFT_DATA/promoters

    classes: ClassVar = 2
    labels: ClassVar = ("other", "promoter")
    text: ClassVar = "sequence"
    expected: ClassVar = EXPECTED

    @property
    def prepared(self) -> Labelled:
        """All sequences of the organism; read again only if the file has changed."""
        path = self._folder() / "promoters.jsonl"
        if not path.is_file():
            raise readers.unexpected("promoters", self._folder(), EXPECTED)
        stamp = tuple(readers.stamp(path))
        return _prepared(stamp, self.organism, self.kinds, self.seed)

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.kmers.count(len(each)) for each in self.prepared.sequences)

    @property
    def source(self) -> str:
        """Which data this is, in words."""
        found, kinds = self.prepared, " and ".join(self.kinds) or "all kinds"
        return (
            f"promoters of {self.organism}, {kinds} (digest {found.digest}): "
            f"{int(found.labels.sum()):,} of {len(found.labels):,} sequences; by hash 70 % train, "
            "10 % validation, 20 % test"
        )

    def load(self, split: Split) -> Examples:
        """One split, always the same for the same file and settings."""
        return examples_of(self.prepared, self.kmers, self.length, split)


@lru_cache(maxsize=4)
def _prepared(stamp: tuple[Any, ...], organism: str, kinds: tuple[str, ...], seed: int) -> Labelled:
    path, found, known = Path(stamp[0]), [], {}
    for line, row in readers.json_lines(path, organism=str, kind=str, label=int, seq=str):
        label = readers.class_label(row["label"], 2, path, line)
        if label:
            known.setdefault(row["organism"], set()).add(row["kind"])
        if row["organism"] == organism and (not label or not kinds or row["kind"] in kinds):
            where = f"{path.name}, line {line:,}"
            found.append(Sequence(bases(row["seq"], where), str(label), where))
    if organism not in known:
        raise WeftError(f"{path} has no promoters of {organism!r}; {suggest(organism, known)}")
    for kind in kinds:
        if kind not in known[organism]:
            raise WeftError(
                f"{path} has no promoters of the kind {kind!r}; {suggest(kind, known[organism])}"
            )
    return labelled(found, TEST_SHARE, VALID_SHARE, seed)
