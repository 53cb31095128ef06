"""Context parallel: a sequence over several processes, split as the mechanism says.

split(model, group)     forward, backward and loss on shards, for every mixer whose traits say how
family_of(mixer).bill   the bytes that each rank will send, before anything runs
reading(pattern, ...)   which rank reads which keys of others; `weft pattern --ranks` shows it
"""

from weft.scale.context.bill import Bill, attention_bill
from weft.scale.context.exchange import Exchange, Sent
from weft.scale.context.shards import KeyPlan, Shards, reading
from weft.scale.context.split import FAMILIES, Given, SequenceSplit, family_of, parallel, split
from weft.scale.context.world import World

__all__ = [
    "FAMILIES",
    "Bill",
    "Exchange",
    "Given",
    "KeyPlan",
    "Sent",
    "SequenceSplit",
    "Shards",
    "World",
    "attention_bill",
    "family_of",
    "parallel",
    "reading",
    "split",
]
