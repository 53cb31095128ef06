"""Sequences over 2 and 4 processes: results, gradients and bytes are those of one process.

One process per file is started, which forks the ranks: starting Python and torch takes longer than
all the checks. The long test runs every variant of every mixer.
"""

from typing import Any

import pytest
from ranks import run_cases

from weft.arena.analysis.activations import activation_bytes
from weft.config.writing import spec_of
from weft.mixers import MIXERS
from weft.models import MODELS as MODEL_CONFIGS
from weft.scale import Mesh, plan
from weft.testing import variants

CLOSE = 1e-12  # of the largest number, in float64
FELT = 1e-6  # what an exchange that is left out changes at least
LENGTH = 37  # no multiple of 2 or 4
ROWS = [LENGTH, LENGTH // 2 - 1, 3]  # real tokens: all, up to an inner rank, on the first alone

Case = dict[str, Any]


def language_model(mixer: str, positions: str, inside: str | None = None, **more: Any) -> Case:
    frame = {"dim": 16, "heads": 2, "length": 64, "positions": inside}
    stack = {"order": "sfsf", "frame": frame, "mixer": mixer, "feedforward": "dense", **more}
    trunk = {"name": "decoder", "embedding": {"vocab": 11, "positions": positions}, "stack": stack}
    return {"name": "language_model", "trunk": trunk}


def classifier(mixer: str) -> Case:
    trunk = language_model(mixer, "learned")["trunk"] | {"name": "encoder"}
    return {"name": "classifier", "classes": 3, "trunk": trunk}


def case(mixer: str, causal: bool = False, **more: Any) -> Case:
    return {"mixer": mixer, "causal": causal, "n": LENGTH, **more}


# One mixer of each kind of exchange, and what goes with a sequence.
SMALL = [
    case("sliding_window(window=5,sinks=2)", lengths=ROWS, positions="rope"),
    case("full", True, marks=["segments"], balance="head_tail"),
    case("linear_transformer", True),
    case("sru", lengths=ROWS),
    case("perceiver(latents=5)", context=23),
    case("reformer(chunk=4,rounds=2,buckets=4)", True, kv_heads=2),
]
ON_FOUR = [
    case("pattern(reads='sliding(4) | global(first=2, at=[20])')"),
    case("linformer(rank=8)", lengths=ROWS),
    case("full", True),
]
MORE = [
    case("sliding_window(window=5)", kv_heads=2, positions="t5"),
    case("sliding_window(window=5)", True, positions="alibi", balance="head_tail"),
    case("sliding_window(window=5)", marks=["segments"], lengths=ROWS),
    case("full", kv_heads=1, context=23),
    case("longformer(window=5)", marks=["is_global"], lengths=ROWS),
    case("etc(window=5,global_tokens=3)", marks=["member"], lengths=ROWS),
    case("swin(width=8,size=9)"),
    case("swin(size=5)", layer=1),
    case("routing(clusters=3,window=6)", train=True),
    case("routing(clusters=3,window=6)", True, train=True, lengths=ROWS),
    case("full", True, projection="multiplicative_conv(modules=4)"),
    case("linear_transformer", projection="multiplicative_conv(modules=4)"),
    case("performer(features=12)", True, heads=8, kv_heads=2, lengths=ROWS),
    case("sinkhorn(block=8,iterations=3)", heads=2),
    case("entmax", True, positions="alibi", kv_heads=2),
    case("nsa(span=8,stride=4,block=8,selected=4,window=6)", True, kv_heads=2, positions="rope"),
]
MODELS = [
    {
        "settings": language_model("sliding_window(window=9)", "none", "rope"),
        **{"n": LENGTH, "lengths": [37, 20, 3], "padding": "left"},
    },
    {"settings": language_model("full", "learned"), "n": LENGTH},
    {"settings": language_model("full", "sinusoidal"), "n": 36, "compiled": True},
    {"settings": classifier("longformer(window=5)"), "n": LENGTH, "lengths": [37, 20, 3]},
]
MODELS += [
    {"settings": language_model("full", "learned", recompute=kind), "n": LENGTH}
    for kind in ("checkpoint", "reversible")
]
SIDES = {
    "encoder": language_model("full", "learned")["trunk"] | {"name": "encoder"},
    "decoder": language_model("full", "learned", order="scf")["trunk"],
}
BOTH = {"name": "language_model", "trunk": {"name": "encoder_decoder", **SIDES}}
MODELS.append({"settings": BOTH, "n": LENGTH, "source": 38})
EVEN = {"balance": "head_tail", "n": LENGTH}
MODELS.append({"settings": BOTH, "source": 38, **EVEN})
MODELS.append({"settings": language_model("full", "learned"), "compiled": True, **EVEN})
MODELS.append(
    {
        "settings": language_model("full", "none", "rope"),
        **{"lengths": [37, 20, 3], "padding": "left", **EVEN},
    }
)
MODELS = [{"check": "model", **each} for each in MODELS]
ROTARY = language_model("full", "none", "rope")
SHORT = [  # fewer tokens than the four ranks
    {"check": "model", "settings": ROTARY, "n": 3, "lengths": [3, 1, 2], "padding": "left"},
    {"check": "model", "settings": classifier("longformer(window=5)"), "n": 3},
]
DROPPED = [
    {"check": "dropout", "dropout": 0.3, **case(mixer, True)}
    for mixer in ("full", "sliding_window(window=5)")
]
WINDOW = {"check": "window", "pattern": "causal & sliding(16)", "lengths": [128, 256, 1024]}
DENSE = {"check": "window", "pattern": "full()", "lengths": [64, 128]}
MEMORY = [
    {"check": "memory", "settings": language_model(mixer, "none", "rope"), "n": 512}
    for mixer in ("sliding_window(window=9)", "full", "linear_transformer")
]
TWINS = [{"check": "skipped", **SMALL[at]} for at in (0, 1, 2)]


@pytest.fixture(scope="module")
def reports() -> dict[int, list[tuple[Case, Case]]]:
    """What both worlds found: (case, report)."""
    return asked_of({2: [*SMALL, MODELS[0], *TWINS, WINDOW, DENSE], 4: [*ON_FOUR, *SHORT, *MEMORY]})


def asked_of(asked: dict[int, list[Case]]) -> dict[int, list[tuple[Case, Case]]]:
    found = run_cases(asked)
    return {ranks: list(zip(asked[ranks], found[ranks], strict=True)) for ranks in asked}


def wrong(pairs: list[tuple[Case, Case]]) -> list[tuple[Case, Case]]:
    """Cases whose results or bytes differ, or that raised."""
    return [
        (asked, found)
        for asked, found in pairs
        if "error" in found or not found["far"] <= CLOSE or not found.get("right", True)
    ]


def compared(pairs: list[tuple[Case, Case]]) -> list[tuple[Case, Case]]:
    return [pair for pair in pairs if pair[0].get("check", "model") == "model"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_results_gradients_and_bytes_are_those_of_one_process(reports, ranks):
    assert wrong(compared(reports[ranks])) == []
    billed = [found for asked, found in compared(reports[ranks]) if "right" in found]
    assert len(billed) >= 2
    assert all(sum(found["sent"]) > 0 for found in billed)


def test_a_window_sends_the_same_at_any_length_and_dense_attention_more(reports):
    by_pattern = {a["pattern"]: f["each"] for a, f in reports[2] if a.get("check") == "window"}
    window, dense = by_pattern[WINDOW["pattern"]], by_pattern[DENSE["pattern"]]
    assert all(each["right"] for each in [*window.values(), *dense.values()])
    # 15 keys and values of 2 heads, 4 wide, in float32, to the rank after it; the last has none.
    assert {tuple(each["bill"]) for each in window.values()} == {(15 * 64, 0)}
    assert dense["128"]["bill"] == [2 * sent for sent in dense["64"]["bill"]]


def test_memory_falls_with_the_ranks_as_planned(reports):
    """The rank that keeps most: what the plan says of it, within 10 %."""
    found = [(a, f) for a, f in reports[4] if a.get("check") == "memory"]
    assert len(found) == len(MEMORY)
    for asked, report in found:
        for ways, kept in ((1, report["whole"]), (4, max(report["ranks"]))):
            wanted = planned(MODEL_CONFIGS.read(asked["settings"]), ways, asked["n"])
            assert abs(kept - wanted) < 0.1 * wanted, (asked, report, ways, wanted)
        assert max(report["ranks"]) < 0.45 * report["whole"]


def planned(config: Any, ways: int, length: int) -> int:
    own = activation_bytes(config, length, 2, cp=ways)
    found = plan(config, Mesh(cp=ways), rows=2, length=length, activations=own).activation_bytes
    assert found is not None
    return found


def test_each_exchange_is_needed(reports):
    twins = [(asked, found) for asked, found in reports[2] if asked.get("check") == "skipped"]
    assert len(twins) == len(TWINS)
    assert all(found["calls"] for _, found in twins)
    assert [pair for pair in twins if not min(pair[1]["each"]) > FELT] == []


def registry() -> list[Case]:
    """Every variant of every mixer that says what it exchanges, both ways where it can."""
    found = []
    for name in MIXERS:
        for config in variants(MIXERS[name]):
            traits = config.traits
            if not traits.context_parallel:
                continue
            ways = [False] * traits.bidirectional + [True] * traits.causal
            for causal in ways:
                found.append(case(spec_of(config), causal))
    return found


def crossing(cases: list[Case]) -> list[Case]:
    """Those that also read a context."""
    return [c | {"context": 23} for c in cases if MIXERS.parse(c["mixer"]).traits.cross]


@pytest.mark.long
def test_every_mixer_on_shards():
    every = registry()
    padded = [c | {"lengths": ROWS} for c in every]
    pairs = asked_of(
        {2: [*MORE[::2], *MODELS[::2]], 4: [*MORE, *MODELS, *every, *padded, *crossing(every)]}
    )
    assert wrong(compared(pairs[2])) + wrong(compared(pairs[4])) == []
    slopes = asked_of({2: DROPPED})[2]
    assert [pair for pair in slopes if not pair[1].get("far", 1.0) < 1e-6] == []


@pytest.mark.long
def test_each_exchange_of_every_mixer_is_needed():
    firsts = {(MIXERS.parse(c["mixer"]).name, c["causal"]): c for c in reversed(registry())}
    pairs = asked_of({2: [{"check": "skipped", **c} for c in firsts.values()]})[2]
    assert [pair for pair in pairs if not min(pair[1].get("each", [0.0])) > FELT] == []


def test_every_mixer_says_what_it_exchanges():
    silent = [n for n in MIXERS if not MIXERS[n]().traits.context_parallel]
    assert silent == []
