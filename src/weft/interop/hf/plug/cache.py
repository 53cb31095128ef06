"""A cache that keeps only the keys that a pattern can still read, at their true places.

    cache = weft.interop.hf.cache(model)
    model.generate(ids, past_key_values=cache, max_new_tokens=100)

A window of w keeps w − 1 keys between two tokens (the next one is its own w-th), first keys stay,
strides leave gaps. Layers under equal patterns share one record of places (`KeptPlaces`). With
padding each row has places of its own, since a pattern counts its real tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from weft.errors import Unsupported, WeftError
from weft.interop.hf.plug.layers import LayerPatterns, made_causal
from weft.interop.hf.plug.plan import KeyStart
from weft.patterns import Full, Pattern, Sliding
from weft.patterns.derive import keeps


class KeptPlaces:
    """Which tokens the layers under one pattern hold keys of."""

    def __init__(self, pattern: Pattern, heads: int) -> None:
        if pattern.needs_length:
            raise Unsupported(
                f"{pattern} counts from the end of the text, which is not known while it is "
                "written; generate with use_cache=False, or leave that part out"
            )
        self.patterns = tuple(dict.fromkeys(pattern.head(a, heads) for a in range(heads)))
        self.reset()

    def reset(self) -> None:
        """Nothing is held."""
        self.total = 0  # tokens seen
        self.held = np.zeros((1, 0), dtype=np.int64)  # (1 or b, k); −1: nothing
        self.read = self.held  # (1 or b, k + n): what the queries of the last call may read
        self.index: np.ndarray | None = None  # (1 or b, k'): which of `read` are held; None: all
        self._moved: tuple[Any, Tensor] | None = None  # that index on a device

    def advance(self, before: int, new: int, real: np.ndarray | None) -> None:
        """Note `new` tokens behind the first `before`; the layers of one forward agree on it."""
        if before + new == self.total and before != self.total:
            return  # another layer came first
        if before != self.total:
            raise WeftError(
                f"the layers of a cache have seen {before} and {self.total} tokens; it belongs to "
                "another model, or a forward pass was interrupted: make a new cache"
            )
        self.total += new
        rows = len(self.held) if real is None else len(real)
        fresh = np.broadcast_to(np.arange(before, self.total), (rows, new))
        self.read = np.concatenate(
            (np.broadcast_to(self.held, (rows, self.held.shape[1])), fresh), 1
        )
        keep = self._kept(real)
        if keep.all():
            self.index, self.held = None, self.read
            return
        count = int(keep.sum(1).max())
        order = np.argsort(~keep, axis=1, kind="stable")[:, :count]  # kept ones first, in order
        self.index = order
        kept = np.take_along_axis(keep, order, 1)
        self.held = np.where(kept, np.take_along_axis(self.read, order, 1), -1)

    def _kept(self, real: np.ndarray | None) -> np.ndarray:
        """Which of `read` (rows, k) some later query can read."""
        if real is None:
            return self._readable(self.read[0], self.total)[None] & (self.read >= 0)
        ranks = np.maximum(real.cumsum(1) - 1, 0)  # (b, total)
        found = []
        for read, rank, there in zip(self.read, ranks, real, strict=True):
            inside = (read >= 0) & there[np.maximum(read, 0)]
            found.append(inside & self._readable(rank[np.maximum(read, 0)], int(there.sum())))
        return np.stack(found)

    def _readable(self, places: np.ndarray, now: int) -> np.ndarray:
        """Whether a query at `now` or later reads the keys at places, in some head."""
        every = [keeps(pattern, places, now) for pattern in self.patterns]
        return np.logical_or.reduce(every)

    def index_on(self, device: torch.device) -> Tensor | None:
        """`index` as a tensor, copied once for all the layers of a forward pass."""
        if self.index is None:
            return None
        if self._moved is None or self._moved[0] is not self.index:
            made = torch.from_numpy(np.ascontiguousarray(self.index)).to(device)
            self._moved = (self.index, made)
        return self._moved[1].to(device)

    def select(self, rows: np.ndarray) -> None:
        """Other rows of the batch, in this order."""
        if len(self.held) > 1:
            self.held = self.held[rows]


class PatternCacheLayer(DynamicLayer):
    """The keys and values of one layer."""

    is_croppable = False

    def __init__(self, kept: KeptPlaces, cache: PatternCache) -> None:
        super().__init__()
        self.kept, self.cache, self.seen = kept, cache, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """All keys that the new queries may read; what no later one can is dropped afterwards."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.keys is not None and self.keys.numel() and not _alike(self.keys, key_states):
            raise WeftError(
                f"this cache holds keys {tuple(self.keys.shape)} (batch, heads, length, width) and "
                f"got {tuple(key_states.shape)}: it belongs to another model or batch; make a new "
                "one"
            )
        new = key_states.shape[2]
        self.kept.advance(self.seen, new, self.cache.real)
        self.seen += new
        keys, values = _after(self.keys, key_states), _after(self.values, value_states)
        index = self.kept.index_on(keys.device)
        self.keys, self.values = (x if index is None else _picked(x, index) for x in (keys, values))
        return keys, values

    @property
    def batch(self) -> int:
        """Rows held."""
        return 0 if self.keys is None else len(self.keys)

    def get_seq_length(self) -> int:
        """Tokens seen, also those whose keys are gone."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The whole text: the attention function knows which of it is held."""
        return self.seen + query_length, 0

    def reset(self) -> None:
        super().reset()
        self.seen = 0
        self.kept.reset()

    def crop(self, tokens_to_remove: int) -> None:
        """Keys that are gone do not come back."""
        if tokens_to_remove:
            raise Unsupported(
                "this cache dropped keys that going back would need; for assisted generation give "
                "past_key_values=DynamicCache()"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.seen:
            self._take(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.seen:
            self._take(torch.arange(self.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.seen:
            self._take(torch.arange(self.batch)[indices.cpu()])

    def _take(self, rows: Tensor) -> None:
        assert self.keys is not None
        assert self.values is not None
        self.keys = self.keys.index_select(0, rows.to(self.keys.device))
        self.values = self.values.index_select(0, rows.to(self.values.device))


class PatternCache(Cache):
    """A decoder's cache under patterns; what attends differently keeps its own kind of layer."""

    def __init__(self, config: Any, patterns: LayerPatterns) -> None:
        self.user = patterns.name
        self.real: np.ndarray | None = None  # (b, tokens): which are real; None: all
        text = config.get_text_config(decoder=True)
        heads, shared = text.num_attention_heads, {}
        side = "decoder" if getattr(config, "is_encoder_decoder", False) else None
        layers: list[Any] = DynamicCache(config=text).layers
        for number, layer in enumerate(layers):
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                continue
            own = Sliding(layer.sliding_window) if layer.is_sliding else Full()  # type: ignore[attr-defined]
            pattern = made_causal(own & patterns.of(side, number), heads)
            if pattern not in shared:
                shared[pattern] = KeptPlaces(pattern, heads)
            layers[number] = PatternCacheLayer(shared[pattern], self)
        self.kept = list(shared.values())
        super().__init__(layers=layers)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and start of the keys; the start carries this cache to the attention function."""
        length, start = super().get_mask_sizes(query_length, layer_idx)
        return length, KeyStart(start, self)

    def note_padding(self, real: Tensor | None) -> None:
        """Which tokens are real (b, tokens), before the layers see the last of them."""
        self.real = None if real is None else real.cpu().numpy()

    def places(self, layer: int | None, k: Tensor) -> Tensor:
        """Where the keys (b, g, m, d) of the last update are in the text: (1 or b, m)."""
        kept = getattr(self.layers[layer], "kept", None) if layer is not None else None
        if kept is None or kept.read.shape[1] != k.shape[2]:
            raise WeftError(
                f"this cache and layer {layer} of the model do not fit: make the cache by "
                "weft.interop.hf.cache(model) for this very model"
            )
        return torch.from_numpy(np.ascontiguousarray(kept.read)).to(k.device)

    def check_user(self, name: str) -> None:
        """Refuse a model under other patterns: it would read keys that are gone."""
        if name != self.user:
            raise WeftError(
                "this cache was made for a model under other patterns, and keeps the keys that "
                "those need; make one by weft.interop.hf.cache(model)"
            )

    def reorder_cache(self, beam_idx: Any) -> None:
        super().reorder_cache(beam_idx)
        self._select_places(beam_idx.cpu().numpy())

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        for kept in self.kept:
            kept.select(np.arange(len(kept.held)).repeat(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        for kept in self.kept:
            kept.select(np.arange(len(kept.held))[indices.cpu().numpy()])

    def _select_places(self, rows: np.ndarray) -> None:
        for kept in self.kept:
            kept.select(rows)

    def held_keys(self) -> list[int]:
        """How many keys each layer holds in a row."""
        keys = [getattr(layer, "keys", None) for layer in self.layers]
        return [0 if each is None else each.shape[-2] for each in keys]


def _alike(held: Tensor, new: Tensor) -> bool:
    return held.shape[:2] == new.shape[:2] and held.shape[3] == new.shape[3]


def _after(held: Tensor | None, new: Tensor) -> Tensor:
    """(b, g, k, d) followed by (b, g, n, d)."""
    return torch.cat((held, new), dim=2) if held is not None and held.numel() else new


def _picked(x: Tensor, chosen: Tensor) -> Tensor:
    """x (b, g, m, d) at chosen (1 or b, k), a copy: the dropped keys free their memory."""
    if len(chosen) == 1:
        return x.index_select(2, chosen[0])
    return x.gather(2, chosen[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
