"""Pictures, pixel by pixel: drawn from nothing, or completed from their first rows.

    start, x_1, ..., x_k  →  x_{k+1}, ..., x_n;   x_t is drawn from p(colour | start, x_<t)

A model of pixels has one id more than there are colours: the start of a picture. It is read and
never written: its score is cut off before anything is chosen, so no temperature, filter or weight
of the model can draw it.

Paper: Chen et al. 2020, Generative Pretraining from Pixels, section 2,
https://openai.com/index/image-gpt/ (samples, and completions of upper halves)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.generate.decoding import evaluating
from weft.generate.engine import Engine
from weft.generate.sampling import Sampling
from weft.generate.stopping import Stopping


class ColoursOnly:
    """A decoder of pixels without the score of its last id, the start of a picture."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, batch: int) -> Any:
        """The state before the first id."""
        return self.model.start(batch)

    def next_scores(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """New ids (b, n) -> scores (b, colours) of the next pixel, and the state."""
        scores, state = self.model.next_scores(ids, state)
        return scores[:, :-1], state


def sample_pictures(
    model: Any,
    beginnings: Sequence[Tensor],
    length: int,
    *,
    sampling: Sampling | None = None,
    seconds: float | None = None,
) -> list[Tensor]:
    """Pictures (length,) as ids, one for each beginning (k,), which may be empty: k = 0.

    `model` is a LanguageModel of the objective pixel_lm, kind "causal". After `seconds` it stops,
    and pictures are as long as they have come. A seed of `sampling` gives the same draws again to
    the same beginnings.
    """
    sampling = sampling or Sampling(temperature=1.0)
    prompts = [_prompt(row, model.last_id, length, at) for at, row in enumerate(beginnings, 1)]
    last = None if seconds is None else time.perf_counter() + seconds
    found: dict[int, Tensor] = {}
    with evaluating(model):
        for size in sorted({len(prompt) for prompt in prompts}):
            group = [at for at, prompt in enumerate(prompts) if len(prompt) == size]
            some = _grown(model, [prompts[at] for at in group], length, sampling, last)
            found |= dict(zip(group, some, strict=True))
    return [found[at] for at in range(len(prompts))]


def _grown(
    model: Any, prompts: list[Tensor], length: int, sampling: Sampling, last: float | None
) -> list[Tensor]:
    """Whole pictures (length,) from prompts of one length, which begin with the start."""
    lacking = length + 1 - len(prompts[0])
    if not lacking:
        return [prompt[1:] for prompt in prompts]
    device = next(model.parameters()).device
    for prompt in prompts:
        # The last pixel is returned, never read.
        model.check_prompt(prompt, length)
    engine = Engine(
        model=ColoursOnly(model),
        prompts=[prompt.to(device) for prompt in prompts],
        stopping=Stopping(new_tokens=lacking),
        sampling=sampling,
    )
    for _ in engine.steps():
        if last is not None and time.perf_counter() > last:
            break
    return [
        torch.cat((row.prompt[1:].cpu(), torch.tensor(row.watch.tokens))) for row in engine.rows
    ]


def _prompt(row: Tensor, start: int, length: int, number: int) -> Tensor:
    """The start and what is there of a picture: (1 + k,)."""
    if row.dim() != 1 or row.is_floating_point() or len(row) > length:
        raise WeftError(
            f"a picture begins with 0 to {length} ids (k,); beginning {number} is "
            f"{row.dtype} {tuple(row.shape)}"
        )
    if len(row) and not 0 <= int(row.min()) <= int(row.max()) < start:
        raise WeftError(
            f"pixels are 0 to {start - 1}; beginning {number} has {int(row.min())} to "
            f"{int(row.max())}"
        )
    return torch.cat((torch.tensor([start]), row.long().cpu()))
