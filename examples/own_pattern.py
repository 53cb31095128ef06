"""Invent an attention pattern, look at it, and train a layer that uses it.

The pattern: a token reads itself and the tokens 1, 2, 4, 8, ... steps before it. It sees few keys,
and still any two tokens are log2(n) layers apart at most.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import weft
from weft.patterns import picture
from weft.patterns.derive import cost, receptive_field

LENGTH, DIM, HEADS = 256, 32, 4

doubling = weft.Causal() & weft.Predicate(lambda i, j: (i - j) & (i - j - 1) == 0, "doubling")
facts = cost(doubling, LENGTH)
print(f"{doubling}: {facts.pairs:,} of {LENGTH**2:,} pairs, {100 * facts.density:.1f}%")
for layers in (1, 2, 4, 8):
    reached = receptive_field(doubling, LENGTH, layers).sum() / (LENGTH * (LENGTH + 1) / 2)
    print(f"  after {layers} layers a token knows {100 * reached:.0f}% of what came before it")
Path("runs").mkdir(exist_ok=True)
picture.save(doubling, LENGTH, "runs/doubling.png", layers=3)


class Doubling(nn.Module):
    """An attention layer over the pattern; residual outside."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x):
        """(b, n, c) -> (b, n, c)."""
        heads = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(weft.attend(*heads, doubling).transpose(1, 2).flatten(2))


# The task: say which symbol stood 64 steps before. Only the pattern's longer steps reach it.
torch.manual_seed(0)
embed, layer, read = nn.Embedding(8, DIM), Doubling(), nn.Linear(DIM, 8)
place = nn.Parameter(torch.randn(LENGTH, DIM))
weights = [*embed.parameters(), *layer.parameters(), *read.parameters(), place]
optimiser = torch.optim.Adam(weights, lr=1e-2)
losses = []
for _ in range(60):
    ids = torch.randint(8, (8, LENGTH))
    scores = read(layer(embed(ids) + place))[:, 64:]
    loss = F.cross_entropy(scores.flatten(0, 1), ids[:, :-64].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}; guessing gives {torch.tensor(8.0).log():.2f}")
