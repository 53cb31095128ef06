"""Stop signals: the first lets the step end and saves the state, the second ends at once.

SIGINT is what Ctrl-C sends, SIGTERM what schedulers and `timeout` send.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """Inside the `with`, `requested` is the name of the signal that asked to stop, or None.

    Python allows signal handlers in the main thread alone; elsewhere this changes nothing.
    """

    def __init__(self) -> None:
        self.requested: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._asked) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.requested is not None:
            os._exit(128 + number)
        self.requested = signal.Signals(number).name
