"""Tasks, one file each; importing this package fills TASKS."""

from weft.arena.tasks.base import SPLITS, TASKS, Split, Task, majority
from weft.arena.tasks.dna.long_promoters import LongPromoters
from weft.arena.tasks.dna.promoters import Promoters
from weft.arena.tasks.dna.sequences import Dna
from weft.arena.tasks.events.task import Events
from weft.arena.tasks.image import Image
from weft.arena.tasks.key_value import KeyValue
from weft.arena.tasks.key_value_uuid import KeyValueUuid
from weft.arena.tasks.language import Language
from weft.arena.tasks.listops.task import ListOps
from weft.arena.tasks.multimodal.task import Multimodal
from weft.arena.tasks.passages import Passages
from weft.arena.tasks.pathfinder.task import Pathfinder, PathX
from weft.arena.tasks.pictures.task import Pictures
from weft.arena.tasks.pixels import Pixels
from weft.arena.tasks.retrieval import Retrieval
from weft.arena.tasks.reversal import Reversal
from weft.arena.tasks.sound.digits import Digits
from weft.arena.tasks.sound.sounds import Sounds
from weft.arena.tasks.table.task import Table
from weft.arena.tasks.text import Text
from weft.arena.tasks.transactions.task import Transactions
from weft.arena.tasks.translate import Translate

__all__ = [
    "SPLITS",
    "TASKS",
    "Digits",
    "Dna",
    "Events",
    "Image",
    "KeyValue",
    "KeyValueUuid",
    "Language",
    "ListOps",
    "LongPromoters",
    "Multimodal",
    "Passages",
    "PathX",
    "Pathfinder",
    "Pictures",
    "Pixels",
    "Promoters",
    "Retrieval",
    "Reversal",
    "Sounds",
    "Split",
    "Table",
    "Task",
    "Text",
    "Transactions",
    "Translate",
    "majority",
]
