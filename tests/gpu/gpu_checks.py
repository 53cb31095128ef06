"""How far a kernel's values and gradients lie from the truth, and checks one by one."""

import torch


def error(found, wanted):
    """The norm of the difference, in norms of what is wanted."""
    return ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()


def compare(out, expected, inputs, limit=1e-2):
    """Values and the gradients of all inputs; a NaN is no small error."""
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream.to(expected.dtype))
    errors = [error(out, expected), *map(error, found, wanted)]
    assert all(each < limit for each in errors), errors


def attempt(check, args):
    """One line: what was checked, and how it went."""
    try:
        check(*args)
        return f"ok {check.__name__} {args}"
    except Exception as problem:
        return f"FAILED {check.__name__} {args} {type(problem).__name__} {str(problem)[:300]}"
