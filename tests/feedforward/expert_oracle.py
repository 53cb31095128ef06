"""Layers of experts written token by token in Python: the truth of the tests."""

from __future__ import annotations

import torch


def expert(module, number, x, activation):
    """One expert on one token (c,)."""

    def linear(part, value):
        y = value @ part.weight[number]
        return y if part.bias is None else y + part.bias[number]

    hidden = linear(module.to_hidden, x)
    if module.to_gate is None:
        return linear(module.to_out, activation(hidden))
    return linear(module.to_out, activation(linear(module.to_gate, x)) * hidden)


def first_come(choices, experts, capacity):
    """Which (token, number of its choice) finds room: all first choices, then the second ones."""
    room, taken = [capacity] * experts, set()
    for k in range(max(map(len, choices))):
        for token, wanted in enumerate(choices):
            if k < len(wanted) and wanted[k] is not None and room[wanted[k]] > 0:
                room[wanted[k]] -= 1
                taken.add((token, k))
    return taken


def routed(module, x, choices, gates, taken, activation):
    """Σ gate · expert over the pairs that found room: x (t, c) -> (t, c)."""
    y = torch.zeros_like(x)
    for token, wanted in enumerate(choices):
        for k, number in enumerate(wanted):
            if (token, k) in taken:
                y[token] = y[token] + gates[token][k] * expert(
                    module.experts, number, x[token], activation
                )
    return y
