"""Every check of the contract bites: a twin broken on purpose fails it, for the stated reason."""

import re

import pytest
import twins_equality  # noqa: F401  # importing files the twins
import twins_invariance  # noqa: F401  # importing files the twins
import twins_marking  # noqa: F401  # importing files the twins
import twins_streaming  # noqa: F401  # importing files the twins
from tiny import TWINS, Tiny, TinyAttention
from twins_promises import ChangesGain, KeepsList, LeavesOutGain

from weft.testing import CHECKS, checks_for

# check, broken twin, what the message has to say
BITES = [
    ("reference", "OneTooMany", "n=7: forward and reference"),
    ("reference", "OneTooFew", "forward and reference"),
    ("reference", "CopiesValues", "forward and reference"),
    ("reference", "TilesHeads", "kv_heads=2"),
    ("reference", "WrongBeyond128", "n=129"),
    ("reference", "SinglePrecision", "error .*e-0[5-9] exceeds"),
    ("reference", "BiasBackwards", "positions=t5"),
    ("reference", "CoarseInHalf", "typical error .* in torch.float32"),
    ("reference", "PaddingForgotten", "padded: forward and reference"),
    ("gradients", "DetachedKeys", "gradient of x"),
    ("gradients", "UnusedParameter", "gradient of spare: there is none"),
    ("gradients", "NanOnEmptyRows", "not finite"),
    ("lengths", "MultiplesOfFour", "n=1: RuntimeError"),
    ("lengths", "NeedsTwoTokens", "n=1.*not finite"),
    ("lengths", "TableOf512", "n=1000: IndexError"),
    ("lengths", "CropsToEven", r"n=7: \(1, 7, 32\) became \(1, 6, 32\)"),
    ("long_sequences", "WrongWhenLong", "n=700: forward and reference"),
    ("long_sequences", "DetachedWhenLong", "n=700: gradient of x"),
    ("long_sequences", "PaddingForgottenWhenLong", "padded on the right, 350 real tokens"),
    ("long_sequences", "LeaksWhenLong", "n=700: outputs before the change of"),
    ("half_precision", "ExpOverflows", "float16.*not finite"),
    ("half_precision", "NanOnEmptyRows", "float16, gradient of .*not finite"),
    ("half_precision", "ReturnsFloat32", "the output is torch.float32"),
    ("half_precision", "CoarseInHalf", "typical error .* in torch.float16"),
    (
        "half_precision",
        "ReferenceRaisesInHalf",
        "positions=alibi.*RuntimeError: expected m1 and m2",
    ),
    ("scale", "ShiftedByHiddenKeys", "inputs × 10: forward and reference"),
    ("scale", "ScoresClipped", "parameters × 50: forward and reference"),
    ("scale", "FlatWhenLarge", "inputs × 50: gradient of x"),
    ("scale", "StepsShiftedByHiddenKeys", "inputs × 10: step and forward"),
    ("causality", "LeaksOneToken", "outputs before the change of one token"),
    ("causality", "LeaksThroughMean", "outputs before the change of one token"),
    ("causality", "LeaksByRounding", "by up to .*e-0[789]"),
    ("causality", "WindowGrowsWithLength", "the first .* of 67 tokens alone"),
    ("streaming", "PositionsStartAgain", "positions=rope"),
    ("streaming", "StateForgets", "step and forward"),
    ("streaming", "StateOnModule", "two streams in turns"),
    ("streaming", "PositionNotCounted", "the state counts"),
    ("streaming", "SelectsHalf", "State.select"),
    ("streaming", "StepsInFloat32", "the output is torch.float32"),
    ("state_size", "StateTooLarge", "after 28 tokens the state holds 384 .* says 320"),
    ("state_size", "StateHidesMore", "bytes but keeps"),
    ("state_formula", "FormulaTooSmall", "after 3 tokens the state holds 192 .* is 160"),
    ("state_formula", "FormulaTooLarge", "never nearly reached; at most 50%"),
    ("state_formula", "FormulaGrows", "never nearly reached; at most 5%"),
    ("state_formula", "FormulaInProse", "cannot be evaluated"),
    ("state_formula", "FormulaOfNothing", "cannot be evaluated .'w'."),
    ("cross", "ContextIgnored", "n=17, m=1"),
    ("cross", "ContextPaddingForgotten", "context padded on the"),
    ("cross", "ContextTimesZero", "context padded on the right, which holds nan"),
    ("cross", "NanOnEmptyContext", "context all padding"),
    ("first_rows", "FirstRowsReadThemselves", "first rows 1 and forward"),
    ("first_rows", "FirstRowsForgetPadding", "padded: first rows 9 and forward"),
    ("first_rows", "AlignedForgetsPadding", "padded: aligned"),
    ("padding", "PaddingForgotten", "padded on the right, 17 real tokens"),
    ("padding", "PaddingCountsAsDistance", "padded on the inside"),
    ("padding", "PaddingTimesZero", "nan as padding on the right.*not finite"),
    ("padding", "PaddingSpeaks", "the outputs at padding are not 0"),
    ("padding", "MeanOverPadding", "padded on the right"),
    ("batch_composition", "BatchNormalised", "alone and in a batch"),
    ("batch_composition", "RowsTimesZero", "beside rows that are not finite.*not finite"),
    ("batch_composition", "RowsNumbered", "alone and in a batch"),
    ("batch_composition", "MeanOverPadding", "beside a longer row"),
    ("batch_history", "SwitchesAfterShortBatch", "after a batch of 1 × 1"),
    ("batch_history", "FirstLengthDecides", "saw a short batch first"),
    ("batch_history", "CountsCalls", "after a batch of"),
    ("marks", "MarkIgnored", "marked by loud: the mark changes nothing"),
    ("marks", "MarkInForwardAlone", "marked by loud: forward and reference"),
    ("marks", "MarkWithoutGradient", "marked by loud: gradient of x"),
    ("marks", "MarkStaysBehind", "marked by loud, padded on the left"),
    ("marks", "MarkOfAnyType", "a mark of another type is not refused"),
    ("positions", "PositionsIgnored", "the positions change nothing"),
    ("reproducibility", "UnseededPattern", "another build, the same state_dict"),
    ("reproducibility", "DrawsEachTime", "two forwards"),
    ("reproducibility", "DropsInEval", "dropout=0.5 in eval"),
    ("compile", "BreaksGraph", "compiled"),
    ("refusals", "AcceptsContext", "deny a context, but it was accepted"),
    ("refusals", "RefusesVaguely", "has to raise Unsupported; it raised ValueError"),
    ("refusals", "StartsBidirectional", "deny start"),
    ("refusals", "IndexErrorBeyondLength", "raised IndexError"),
    ("shapes", "CommentsWrongly", r"but its comment says \(b, n, c\)"),
]


def run(check: str, config) -> None:
    options = {"registry": TWINS} if check == "round_trip" else {}
    CHECKS[check](config, **options)


@pytest.mark.parametrize("check", CHECKS)
def test_the_sound_twin_passes(check):
    assert check in dict(checks_for(Tiny())), "the sound twin has to take every check"
    run(check, Tiny())


@pytest.mark.parametrize(("check", "twin", "message"), BITES)
def test_a_broken_twin_fails(check, twin, message):
    with pytest.raises(AssertionError) as caught:
        run(check, Tiny(module=twin))
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    "config", [KeepsList(), LeavesOutGain(), ChangesGain()], ids=lambda c: c.name
)
def test_a_config_that_is_not_written_whole_fails(config):
    with pytest.raises(AssertionError, match=r"reads back as|cannot be read back"):
        run("round_trip", config)


def test_every_check_has_a_twin_that_fails_it():
    assert {check for check, _, _ in BITES} | {"round_trip"} == set(CHECKS)


def test_every_twin_is_used():
    assert set(TinyAttention.modules) - {"TinyAttention"} == {twin for _, twin, _ in BITES}
