"""The last events of clients as what a model reads: (b, n, channels), the most recent one last.

    channels   codes of categories, scaled numbers (NaN: missing), and six numbers of the time:
               log(1 + days since the event before), log(1 + days until the end), and sine and
               cosine of the hour of the day and of the day of the week

The end is the client's `until`, or its last event. Nothing here depends on other clients.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from weft.events.encoders import Encoders
from weft.events.store import Store

TIME_CHANNELS = 6
WEEK = 7.0


def channels(encoders: Encoders) -> int:
    """Of each event."""
    return len(encoders.codes) + len(encoders.numbers) + TIME_CHANNELS


def time_features(times: np.ndarray, before: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Days (rows,), those of the event before, and of the end: (rows, 6) float32."""
    hour, week = 2 * np.pi * times, 2 * np.pi * times / WEEK
    features = (
        np.log1p(np.maximum(times - before, 0.0)),
        np.log1p(np.maximum(end - times, 0.0)),
        np.sin(hour),
        np.cos(hour),
        np.sin(week),
        np.cos(week),
    )
    return np.stack(features, axis=-1).astype(np.float32)


def padded(
    store: Store, clients: np.ndarray, length: int, width: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """The last `length` events of clients (b,): values (b, n, channels) and valid (b, n).

    n is the longest of them, or `width`; valid is None where nothing is padded.
    """
    stops = store.starts[clients + 1]
    sizes = np.minimum(stops - store.starts[clients], length)  # (b,)
    n = max(int(sizes.max(initial=1)), 1) if width is None else width
    real = np.arange(n) < sizes[:, None]  # (b, n)
    places = (stops - sizes)[:, None] + np.arange(n)  # (b, n)
    chosen = places[real]
    times = store.times[chosen]
    first = np.repeat(store.starts[clients], sizes)  # of each event's client
    before = np.where(chosen > first, store.times[np.maximum(chosen - 1, 0)], times)
    end = np.repeat(store.until[clients], sizes)
    values = np.concatenate(
        (
            store.codes[chosen].astype(np.float32),
            store.numbers[chosen],
            time_features(times, before, end),
        ),
        axis=1,
    )
    x = np.zeros((*real.shape, values.shape[1]), dtype=np.float32)
    x[real] = values
    return torch.from_numpy(x), None if real.all() else torch.from_numpy(real)
