"""Measurements: attention layers and cores, gated by correctness, taking turns, stamped."""

from weft.bench.cases import Case, choose
from weft.bench.gate import Gate, check
from weft.bench.run import Bench
from weft.bench.setting import Setting

__all__ = ["Bench", "Case", "Gate", "Setting", "check", "choose"]
