"""Order strings: which sublayers a stack has, letter by letter.

    s   self-mixing                      c   attention to a context
    f   feed-forward                     p   self-mixing and attention to a context, in parallel
    w   self-mixing whose heads each pass a feed-forward (`models/stack/weighted.py`)

    "sf" * 6          the ordinary transformer of six layers
    sandwich(16, 6)   s^6 (sf)^10 f^6, Press et al. 2020, https://arxiv.org/abs/1911.03864

A *layer* is the shortest string whose repetition is the order: "scfscf" has two, "scf". Where an
order repeats nothing, as a sandwich, a layer reaches from one self-mixing to the next.
"""

from __future__ import annotations

from itertools import pairwise

from weft.errors import WeftError

LETTERS = {
    "s": "self-mixing",
    "c": "cross-attention",
    "f": "feed-forward",
    "p": "self-mixing and cross-attention in parallel",
    "w": "weighted heads",
}
MIXING = "spw"  # hold a token mixer
CROSSING = "cp"  # read a context
FEEDING = "fw"  # hold a feed-forward
LONGEST = 10_000  # letters of an order


def sandwich(layers: int, ends: int) -> str:
    """The order s^k (sf)^(n−k) f^k of n layers with k = `ends`; letters count as in "sf"·n."""
    if not 0 <= ends <= layers:
        raise WeftError(f"a sandwich of {layers} layers has 0 to {layers} ends; got {ends}")
    check_size(2 * layers)
    return "s" * ends + "sf" * (layers - ends) + "f" * ends


def check_order(order: str) -> None:
    """Refuse unknown letters, orders in which no token meets another, and endless ones."""
    check_size(len(order))
    unknown = sorted(set(order) - set(LETTERS))
    if unknown:
        known = ", ".join(f"{letter!r} ({what})" for letter, what in LETTERS.items())
        raise WeftError(
            f"an order is made of {known}; got {', '.join(map(repr, unknown))} in {order!r}"
        )
    if not count(order, MIXING):
        raise WeftError(
            f"an order needs at least one 's', or no token meets another; got {order!r}"
        )


def check_size(sublayers: int) -> None:
    """Refuse more sublayers than any model has, before a text of that length is made."""
    if sublayers > LONGEST:
        raise WeftError(f"an order has up to {LONGEST:,} sublayers; got {sublayers:,}")


def count(order: str, letters: str) -> int:
    """How many letters of the order are among these."""
    return sum(letter in letters for letter in order)


def split(order: str) -> tuple[str, ...]:
    """The layers of an order: `split("sfsf") == ("sf", "sf")`."""
    for size in range(1, len(order) // 2 + 1):
        times, rest = divmod(len(order), size)
        if not rest and order == order[:size] * times and count(order[:size], MIXING):
            return (order[:size],) * times
    starts = [i for i, letter in enumerate(order) if letter in MIXING]
    edges = [0, *starts[1:], len(order)]
    return tuple(order[a:b] for a, b in pairwise(edges))


def repeated(order: str, layers: int) -> str:
    """The shortest string that gives an order when repeated N times: ("sfsf", 3) -> "sfsfsf"."""
    if layers < 1:
        raise WeftError(f"layers is at least 1; got layers={layers}")
    sizes = range(1, len(order) + 1)
    unit = next((order[:n] for n in sizes if order == order[:n] * (len(order) // n)), "")
    check_size(len(unit) * layers)
    return unit * layers
