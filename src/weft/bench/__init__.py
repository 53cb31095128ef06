"""Benchmarks of attention layers and cores: checked before they are timed, timed in turns."""

from weft.bench.cases import Case, choose
from weft.bench.gate import GateResult, check
from weft.bench.run import Bench
from weft.bench.setting import Setting

__all__ = ["Bench", "Case", "GateResult", "Setting", "check", "choose"]
