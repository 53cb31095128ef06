"""Lowering: a pattern becomes *parts*, each block-sparse or dense in its own order.

Some patterns are sparse but not block-sparse in natural order: every block of a strided pattern
holds one visible diagonal. So branches of a union are distinguished by what makes them sparse:

    strided, dilated, a picture's columns    residue classes become sequences of their own (fold)
    columns, chosen keys                     the keys are selected; the rest of the branch remains
    chosen queries                           these few rows are computed separately, over all keys
    windows of a picture                     tiles of pixels become blocks
    everything else                          natural order

Parts have disjoint keys (each excludes the ones before it), so their results merge exactly through
the log-sum-exp. Whether lowering pays is decided by counting computed pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import product

from weft.patterns.algebra import And, Or, Pattern
from weft.patterns.closed_forms import computed_in_closed_form
from weft.patterns.grid import Axis, GridPattern
from weft.patterns.layout import Layout, layout
from weft.patterns.order import Order, Tiles, select
from weft.patterns.selection import Columns, Global, Keys, Queries
from weft.patterns.sequence import Dilated, Full, Strided

TILE = (8, 16)  # pixels of a picture in one block
_MOST_BRANCHES = 12
_MOST_COLUMNS = 1 << 24  # keys that are listed


@dataclass(frozen=True)
class Part:
    """A share of the keys: `pattern` over queries and keys in these orders, `fold` times over.

    With fold = s the positions p with equal p mod s form s sequences, and `pattern`, `rows` and
    `cols` speak of one of them.
    """

    pattern: Pattern
    rows: Order
    cols: Order
    length: int
    fold: int = 1

    def layout(self, block: int) -> Layout:
        """The blocks to compute."""
        return layout(self.pattern, self.rows, self.cols, self.length, block)

    def fit(self, block: int) -> int:
        """A block no larger than the part needs: folded sequences may be short."""
        longest = max(self.rows.count, self.cols.count)
        return min(block, max(16, 1 << (longest - 1).bit_length()))

    def computed_pairs(self, block: int) -> int:
        """Pairs computed at this block size."""
        found = None
        if type(self.rows) is Order and type(self.cols) is Order:
            rows, cols = ((x.start, x.count) for x in (self.rows, self.cols))
            found = computed_in_closed_form(self.pattern, rows, cols, self.length, block)
        return self.fold * (self.layout(block).computed_pairs if found is None else found)


@dataclass(frozen=True, eq=False)
class Lowered:
    """Parts whose results merge, and the rows that are computed separately instead.

    `lower` caches one per call, so it is compared by identity: a cheap key for caches.
    """

    parts: tuple[Part, ...]
    apart: Part | None = None

    def price(self, block: int, overhead: int, lanes: float) -> float:
        """Computed pairs, as slow as the longest row makes them, and the overhead of each part."""
        pairs: float = self.computed_pairs(block)
        if lanes:
            longest = max(part.layout(block).longest_row for part in self.parts)
            pairs = max(pairs, lanes * longest * block**2)
        return pairs + overhead * (len(self.parts) + (self.apart is not None))

    def computed_pairs(self, block: int) -> int:
        """Pairs computed at this block size; separate rows are dense."""
        extra = self.apart.rows.count * self.apart.cols.count if self.apart else 0
        return extra + sum(part.computed_pairs(block) for part in self.parts)


@lru_cache(maxsize=128)
def lower(
    pattern: Pattern, n: int, m: int, block: int, overhead: int = 0, lanes: float = 0.0
) -> Lowered:
    """The cheapest way to compute n queries, the last of m positions, under a pattern.

    Each part costs `overhead` pairs besides its own. `lanes` is how many multiprocessors stand
    idle for each one that works on the longest row of blocks: 0 where rows share the work.
    """
    rows, cols = _tiled_or_natural(pattern, n, m, block)
    natural = Lowered((Part(pattern, rows, cols, m),))
    choices = [natural]
    for select_keys in (False, True):
        split = _split(pattern, n, m, block, select_keys)
        choices += [split] if split is not None else []
    return min(choices, key=lambda choice: choice.price(block, overhead, lanes))


def branches(pattern: Pattern) -> list[Pattern]:
    """The pattern as a union: `&` is distributed over `|`, global tokens fall into two halves."""
    if isinstance(pattern, Global):
        return list(pattern.halves)
    if isinstance(pattern, Or):
        return [branch for part in pattern.parts for branch in branches(part)]
    if isinstance(pattern, And):
        choices = [branches(part) for part in pattern.parts]
        return [reduce(lambda a, b: a & b, choice) for choice in product(*choices)]
    return [pattern]


def _split(pattern: Pattern, n: int, m: int, block: int, select_keys: bool) -> Lowered | None:
    """Parts by what makes each branch sparse; chosen keys stay in natural order if not selected."""
    every = branches(pattern)
    if len(every) > _MOST_BRANCHES:
        return None
    whole = [b for b in every if any(isinstance(c, Queries) for c in conjuncts(b))]
    rest = [b for b in every if b not in whole]
    plain = [
        b
        for b in rest
        if _stride(b, n, m) is None and not (select_keys and _selection(b) is not None)
    ]
    parts, taken = [], list(plain)
    if plain:
        union = reduce(lambda a, b: a | b, plain)
        parts.append(Part(union, *_tiled_or_natural(union, n, m, block), m))
    for branch in rest:
        if branch not in plain:
            part = _special(branch, taken, n, m)
            if part is None:
                return None
            parts.append(part)
            taken.append(branch)
    apart = _apart(pattern, whole, n, m)
    if not parts or (whole and apart is None):
        return None
    return Lowered(tuple(parts), apart)


def _special(branch: Pattern, taken: list[Pattern], n: int, m: int) -> Part | None:
    """A folded or key-selecting part for what `branch` reads and the taken branches do not."""
    own = reduce(lambda a, b: a & ~b, taken, branch)
    stride = _stride(branch, n, m)
    if stride is not None:
        inner, count = own.every_nth(stride), -(-m // stride)
        return inner and Part(inner, Order(count), Order(count), count, stride)
    selection = _selection(branch)
    assert selection is not None
    if isinstance(selection, Columns) and selection.count(m) > _MOST_COLUMNS:
        return None
    chosen = select(selection.positions(m))
    others = [c for c in conjuncts(own) if c != selection]
    if not chosen.count:
        return None
    return Part(reduce(lambda a, b: a & b, others, Full()), Order(n, m - n), chosen, m)


def _apart(pattern: Pattern, whole: list[Pattern], n: int, m: int) -> Part | None:
    """The rows of the chosen queries, under the whole pattern, which may come to all keys."""
    sets = [c for b in whole for c in conjuncts(b) if isinstance(c, Queries)]
    if len(sets) != 1 or n != m:
        return None
    rows = select(sets[0].positions(m))
    if any(isinstance(branch, Queries) for branch in whole):
        pattern = Full()
    return Part(pattern, rows, Order(m), m) if rows.count else None


def conjuncts(pattern: Pattern) -> tuple[Pattern, ...]:
    """What a branch requires at once."""
    return pattern.parts if isinstance(pattern, And) else (pattern,)


def _selection(branch: Pattern) -> Columns | Keys | None:
    return next((c for c in conjuncts(branch) if isinstance(c, Columns | Keys)), None)


def _stride(branch: Pattern, n: int, m: int) -> int | None:
    """The stride whose residue classes the branch never leaves, if folding is possible."""
    for part in conjuncts(branch):
        line = part.line if isinstance(part, Axis) else part
        stride = getattr(line, "stride", None) or getattr(line, "dilation", None)
        if n == m and isinstance(line, Strided | Dilated) and stride and stride > 1:
            return stride if branch.every_nth(stride) is not None else None
    return None


def _tiled_or_natural(pattern: Pattern, n: int, m: int, block: int) -> tuple[Order, Order]:
    """Tiles of pixels where the pattern is one of pictures and they fit, else the natural order."""
    if block != TILE[0] * TILE[1]:
        return Order(n, m - n), Order(m)
    grids = {p.width for b in branches(pattern) for p in conjuncts(b) if isinstance(p, GridPattern)}
    if n == m and len(grids) == 1:
        width = grids.pop()
        if m % width == 0 and (m // width) % TILE[0] == 0 and width % TILE[1] == 0:
            tiles = Tiles(m, 0, width, *TILE)
            return tiles, tiles
    return Order(n, m - n), Order(m)
