"""Events of several columns as one vector each: categories by tables, numbers as they are.

    e = W [T_1[x_1]; ...; T_k[x_k]; z] + b + Σ_j [x_(k+j) is missing] M_j

The first k channels are categories, codes that index a table each, T_i (categories_i, width); the
others are numbers, z, where NaN means missing: then z_j is 0 and a learned row M_j is added. Every
table starts as N(0, 1), W so that e has unit variance where numbers have.

After Babaev et al. 2022, CoLES, https://arxiv.org/abs/2002.08232, section 4.2, and Gorishniy et al.
2021, https://arxiv.org/abs/2106.11959. Differs: one width for all tables, so that one gather reads
them; missing numbers have a row of their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import WeftError


class ColumnTables(nn.Module):
    """Channels (b, n, k + m), categories first -> (b, n, c)."""

    starts: Tensor
    sizes: Tensor

    def __init__(self, categories: tuple[int, ...], channels: int, width: int, dim: int) -> None:
        super().__init__()
        self.categories, self.numbers = categories, channels - len(categories)
        sizes = torch.tensor(categories)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("starts", sizes.cumsum(0) - sizes, persistent=False)
        self.table = nn.Parameter(torch.randn(sum(categories), width))
        inputs = len(categories) * width + self.numbers
        self.weight = nn.Parameter(torch.randn(dim, inputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.zeros(dim))
        self.missing = nn.Parameter(torch.randn(self.numbers, dim) * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Channels (b, n, k + m) -> (b, n, c)."""
        codes = x[..., : len(self.categories)]  # (b, n, k)
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            self.check(codes)
        rows = F.embedding(codes.long() + self.starts, self.table).flatten(-2)  # (b, n, k width)
        numbers = x[..., len(self.categories) :].to(self.weight.dtype)  # (b, n, m)
        missing = numbers.isnan()
        joined = torch.cat((rows, numbers.masked_fill(missing, 0.0)), dim=-1)
        absent = missing.to(self.missing.dtype) @ self.missing  # (b, n, c)
        return F.linear(joined, self.weight, self.bias) + absent

    def check(self, codes: Tensor) -> None:
        """Refuse codes that are in no table."""
        known = (codes >= 0) & (codes < self.sizes) & (codes == codes.floor())  # (b, n, k)
        if not bool(known.all()):
            column = int((~known).flatten(0, -2).any(0).int().argmax())
            wrong = codes[..., column][~known[..., column]][0].item()
            raise WeftError(
                f"channel {column} holds categories, whole numbers from 0 to "
                f"{self.categories[column] - 1}; got {wrong:g}. Mark padding with valid="
            )
