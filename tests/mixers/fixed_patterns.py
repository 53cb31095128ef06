"""What tests of fixed-pattern mixers share: building, and attention under a written-out mask."""

import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F

from weft.mixers import Frame

DIM, HEADS, D = 24, 4, 6
close = {"rtol": 0, "atol": 1e-10}
close32 = {"rtol": 0, "atol": 1e-5}


def build(config, **settings):
    """The mixer in fp64, its biases stirred."""
    mixer = config.build(Frame(**{"dim": DIM, "heads": HEADS, **settings})).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            if parameter.dim() == 1:
                parameter.normal_(std=0.1)
    return mixer


def tokens(n, b=2):
    return torch.randn(b, n, DIM, dtype=torch.float64)


def heads(project, x):
    """q, k and v (b, h, n, d), keys repeated for grouped heads."""
    found = []
    for linear in (project.to_q, project.to_k, project.to_v):
        part = linear(x).unflatten(-1, (-1, D)).transpose(1, 2)
        found.append(part.repeat_interleave(HEADS // part.shape[1], dim=1))
    return found


def joined(project, y):
    return project.to_out(y.transpose(1, 2).flatten(2))


def attention(project, x, seen):
    """Softmax attention of x (b, n, c) under booleans that broadcast to (b, h, n, n)."""
    return joined(project, F.scaled_dot_product_attention(*heads(project, x), attn_mask=seen))


def pairs(n, test):
    """(n, n) booleans from a Python function of two integers."""
    return torch.tensor([[bool(test(i, j)) for j in range(n)] for i in range(n)])


def copy_linears(project, query, key, value, out=None):
    """Weights of another library's linear layers; no `out`: the identity."""
    with torch.no_grad():
        for mine, theirs in (
            (project.to_q, query),
            (project.to_k, key),
            (project.to_v, value),
            (project.to_out, out),
        ):
            if theirs is None:
                mine.weight.copy_(torch.eye(len(mine.weight)))
            else:
                mine.weight.copy_(theirs.weight)
            if mine.bias is not None:
                given = None if theirs is None else theirs.bias
                mine.bias.copy_(given) if given is not None else mine.bias.zero_()


def decoded(mixer, x, sizes):
    """Outputs of steps of these sizes, checking the size of the state after each."""
    state, outs, at = mixer.start(len(x)), [], 0
    for size in sizes:
        y, state = mixer.step(x[:, at : at + size], state)
        outs.append(y)
        at += size
        assert state.size() == mixer.state_size(at)
    return torch.cat(outs, dim=1)


def package_file(package, path):
    """One file of a package, run by itself: the rest of the package may need what is not here."""
    home = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    found = importlib.util.spec_from_file_location(f"{package}_{Path(path).stem}", home / path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
