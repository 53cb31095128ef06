"""Documents packed in a row, each under a pattern that counts from its own first token."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# Attention over rows of documents: q, k, v (r, h, l, d) and valid (r, l) -> (r, h, l, e).
AttendRows = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attend_documents(q: Tensor, k: Tensor, v: Tensor, segments: Tensor, run: AttendRows) -> Tensor:
    """(b, h, n, d) in documents numbered by segments (b, n) -> (b, h, n, e).

    Documents are attended to together where their lengths round up to one power of two.
    """
    b, n = segments.shape
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]  # (b·n, heads, d)
    out = v.new_zeros(b * n, q.shape[1], v.shape[-1])
    for index, valid in document_rows(segments):
        rows = [x[index].transpose(1, 2) for x in flat]  # (r, heads, l, d)
        own = run(rows[0], rows[1], rows[2], valid).transpose(1, 2)  # (r, l, h, e)
        out = out.index_put((index[valid],), own[valid].to(out.dtype))
    return out.unflatten(0, (b, n)).transpose(1, 2)


def document_rows(segments: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Places (r, l) of documents in the flattened batch, and which of them are real (r, l)."""
    b, n = segments.shape
    first = torch.ones_like(segments[:, :1], dtype=torch.bool)
    starts = torch.cat((first, segments.diff(dim=1) != 0), dim=1).flatten().nonzero()[:, 0]  # (s,)
    ends = torch.cat((starts[1:], starts.new_tensor([b * n])))
    lengths = ends - starts
    sizes = torch.tensor([(length - 1).bit_length() for length in lengths.tolist()])
    for size in sorted(set(sizes.tolist())):
        chosen = (sizes == size).to(starts.device)
        step = torch.arange(int(lengths[chosen].max()), device=starts.device)
        valid = step < lengths[chosen][:, None]
        yield (starts[chosen][:, None] + step).clamp(max=b * n - 1), valid
