"""One door to all checks: what a part is decides what it has to pass.

    from weft.testing import check
    check(MyMechanism(window=8))       # or a pattern, feed-forward, task, projection, objective

raises AssertionError that says what broke, and where. `checks_for` gives the checks one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from weft.errors import WeftError
from weft.feedforward.base import FeedForwardTraits
from weft.mixers.base import Traits
from weft.patterns import Pattern
from weft.testing import contract, feedforwards, objectives, patterns, projections, tasks

Checks = dict[str, Callable[..., None]]

FAMILIES: dict[str, Checks] = {
    "mixer": contract.CHECKS,
    "pattern": patterns.CHECKS,
    "feed-forward": feedforwards.CHECKS,
    "projection": projections.CHECKS,
    "task": tasks.CHECKS,
    "objective": objectives.CHECKS,
}
_EXEMPT: dict[str, Callable[[Any], dict[str, str]]] = {
    "mixer": contract.exempt,
    "pattern": patterns.exempt,
}


def check(config: Any, *, skip: Collection[str] = ()) -> None:
    """Run every check that applies to this config, save those named in `skip`."""
    for name in skip:
        if name not in FAMILIES[family_of(config)]:
            raise WeftError(f"no check named {name!r}; there are {', '.join(_names(config))}")
    for name, run in checks_for(config):
        if name not in skip:
            run()


def checks_for(config: Any) -> Iterator[tuple[str, Callable[..., None]]]:
    """The checks that apply to this config, by name and ready to call (options may follow)."""
    left_out = exempt(config)
    for name, run in FAMILIES[family_of(config)].items():
        if name not in left_out:
            yield name, partial(run, config)


def exempt(config: Any) -> dict[str, str]:
    """The checks that do not apply, each with the reason."""
    return _EXEMPT.get(family_of(config), lambda _: {})(config)


def family_of(config: Any) -> str:
    """What a config is, by what it has; the families are the keys of FAMILIES."""
    traits = getattr(config, "traits", None)
    if isinstance(config, Pattern):
        return "pattern"
    if isinstance(traits, Traits):
        return "mixer"
    if isinstance(traits, FeedForwardTraits):
        return "feed-forward"
    for family, needed in _HAS.items():
        if all(hasattr(config, name) for name in needed):
            return family
    raise WeftError(
        f"{config!r} is not a part that can be checked: a mixer has traits (mixers.base.Traits), a "
        "feed-forward traits (FeedForwardTraits), a pattern derives from Pattern, a projection has "
        "neighbours and build, a task kind, load and baselines, an objective metric, build and loss"
    )


_HAS = {
    "projection": ("neighbours", "build"),
    "task": ("kind", "load", "baselines"),
    "objective": ("metric", "build", "loss"),
}


def _names(config: Any) -> list[str]:
    return list(FAMILIES[family_of(config)])
