"""Who may read whom: an algebra of predicates, and everything that follows from one.

>>> from weft.patterns import Causal, Sliding, Strided
>>> str(Causal() & (Sliding(128) | Strided(128)))
'causal & (sliding(window=128) | strided(stride=128))'
"""

from weft.patterns.algebra import PATTERNS, Pattern, PerHead, pattern
from weft.patterns.blocks import Blocked, BlockNeighbours, RandomBlocks, SameBlock, Segments
from weft.patterns.custom import Predicate
from weft.patterns.grid import Axis, OffsetBlock, ShiftedWindow, Window2d
from weft.patterns.layout import Layout, layout
from weft.patterns.order import Order, Tiles, select
from weft.patterns.rectangles import Rectangles
from weft.patterns.selection import Columns, Global, Keys, Queries, Sink
from weft.patterns.sequence import Causal, Dilated, Full, Sliding, Strided

__all__ = [
    "PATTERNS",
    "Axis",
    "BlockNeighbours",
    "Blocked",
    "Causal",
    "Columns",
    "Dilated",
    "Full",
    "Global",
    "Keys",
    "Layout",
    "OffsetBlock",
    "Order",
    "Pattern",
    "PerHead",
    "Predicate",
    "Queries",
    "RandomBlocks",
    "Rectangles",
    "SameBlock",
    "Segments",
    "ShiftedWindow",
    "Sink",
    "Sliding",
    "Strided",
    "Tiles",
    "Window2d",
    "layout",
    "pattern",
    "select",
]
