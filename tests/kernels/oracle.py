"""Attention in fp64 from the definition: exponentials, a mask, a quotient. Independent of weft."""

import torch

ALIBI = torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64)


def oracle(q, k, v, pattern, valid=None, segments=None, bias=None, scale=None):
    """Values (b, h, n, e) and log-sum-exp (b, h, n); a row that reads nothing: 0 and −inf."""
    (b, h, n, d), m = q.shape, k.shape[2]
    q, k, v = (x.double() for x in (q, k, v))
    shared = torch.arange(h) * k.shape[1] // h
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k[:, shared]) * (
        d**-0.5 if scale is None else scale
    )
    i, j = torch.arange(m - n, m)[:, None], torch.arange(m)[None, :]
    if bias is not None:
        scores = scores + torch.stack([bias(torch.tensor(a), i, j) for a in range(h)])
    seen = torch.stack([pattern.head(a, h).sees(i, j, m).expand(n, m) for a in range(h)])[None]
    if valid is not None:
        seen = seen & valid[:, None, None, :]
    if segments is not None:
        seen = seen & (segments[:, None, -n:, None] == segments[:, None, None, :])
    seen = seen.expand(b, h, n, m)
    largest = scores.detach().masked_fill(~seen, -1e300).amax(-1, keepdim=True).clamp(min=-1e3)
    weights = torch.where(seen, scores - largest, -torch.inf).exp()
    total = weights.sum(-1)
    alive = total > 0
    total = torch.where(alive, total, 1.0)
    out = torch.einsum("bhnm,bhme->bhne", weights, v[:, shared]) / total[..., None]
    return out, torch.where(alive, total.log() + largest[..., 0], -torch.inf)


def alibi(head, i, j):
    """A bias by distance, steeper in the first heads."""
    return -ALIBI[head] * (i - j).abs()


def heads(b, h, n, d, g=None, m=None, dtype=torch.float64, seed=0):
    """q (b, h, n, d), k and v (b, g, m, d), Gaussian."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((b, h, n, d), *[(b, g or h, m or n, d)] * 2)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]


def assert_same(found, expected, tolerance=1e-10):
    """Values and log-sum-exp agree; −inf stands where it should."""
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert not ours.isnan().any(), "NaN"
        dead = theirs == -torch.inf
        assert (dead == (ours == -torch.inf)).all(), "−inf stands elsewhere"
        apart = (ours.double() - theirs).masked_fill(dead, 0.0).abs().max()
        assert apart <= tolerance, f"off by {apart:.1e}"


def gradients(result, inputs, seed=1):
    """The gradient of a random mixture of values and log-sum-exps."""
    generator = torch.Generator().manual_seed(seed)
    total = 0.0
    for part in result:
        weights = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        total = total + (part.masked_fill(part == -torch.inf, 0.0) * weights.to(part.dtype)).sum()
    found = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    pairs = zip(found, inputs, strict=True)
    return [torch.zeros_like(x) if grad is None else grad for grad, x in pairs]
