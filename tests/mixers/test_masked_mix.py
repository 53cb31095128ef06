"""Attention under masks given at run time: all seen is the mixer itself; pairs are cut exactly."""

import pytest
import torch

from weft.errors import Unsupported
from weft.layers.positions import Alibi, Rope, T5Bias
from weft.layers.projections.multiplicative import Multiplicative, MultiplicativeConv
from weft.mixers import MIXERS, Frame
from weft.mixers.base.masked_mix import check_masked, masked_mix

DIM, HEADS, N = 12, 3, 11
POSITIONS = {"none": None, "rope": Rope(), "alibi": Alibi(), "t5": T5Bias(buckets=8)}
ABLE = (
    *("full", "sliding_window(window=4)", "block_local(block=4)", "transformer_xl"),
    *("sparse_transformer(stride=3)", "bp_transformer"),
)


def built(spec, **frame):
    torch.manual_seed(0)
    given = {"dim": DIM, "heads": HEADS, "head_dim": 4, **frame}
    return MIXERS.parse(spec).build(Frame(**given)).double().eval()


def able(spec):
    """Whether the mixer of a spec can be masked."""
    try:
        check_masked(built(spec))
    except Unsupported:
        return False
    return True


CASES = [
    (spec, name)
    for spec in ABLE
    if able(spec)
    for name in POSITIONS
    if spec != "transformer_xl" or name == "none"
]


def tokens():
    torch.manual_seed(1)
    return torch.randn(2, N, DIM, dtype=torch.float64)


def everything():
    seen = torch.ones(2, N, N, dtype=torch.bool)
    return seen, torch.arange(N).expand(2, -1)


def test_most_of_them_can():
    assert {spec for spec, _ in CASES} >= {
        "full",
        "sliding_window(window=4)",
        "block_local(block=4)",
        "transformer_xl",
    }


@pytest.mark.parametrize(("spec", "positions"), CASES)
def test_all_seen_is_the_mixer(spec, positions):
    mixer, x = built(spec, positions=POSITIONS[positions]), tokens()
    torch.testing.assert_close(masked_mix(mixer, x, *everything()), mixer(x))


@pytest.mark.parametrize(("spec", "positions"), CASES)
def test_the_order_of_the_tensor_is_no_matter(spec, positions):
    """Rows shuffled, each with its place, give the same rows shuffled."""
    mixer, x = built(spec, positions=POSITIONS[positions]), tokens()
    order = torch.stack([torch.randperm(N), torch.randperm(N)])
    mixed = x.gather(1, order[..., None].expand_as(x))
    found = masked_mix(mixer, mixed, everything()[0], order)
    truth = mixer(x).gather(1, order[..., None].expand_as(x))
    torch.testing.assert_close(found, truth)
    if positions != "none" or spec != "full":  # else places do nothing
        wrong = masked_mix(mixer, mixed, *everything())
        assert not torch.allclose(wrong, truth)


@pytest.mark.parametrize(("spec", "positions"), CASES)
def test_who_is_not_seen_changes_nothing(spec, positions):
    mixer, x = built(spec, positions=POSITIONS[positions]), tokens()
    torch.manual_seed(2)
    seen, places = torch.rand(2, N, N) < 0.5, everything()[1]
    before = masked_mix(mixer, x, seen, places)
    for j in range(N):
        changed = x.clone()
        changed[:, j] += 1.0
        after = masked_mix(mixer, changed, seen, places)
        still = ~seen[:, :, j]
        still[:, j] = False  # its own query has changed
        assert torch.equal(after[still], before[still])


def test_a_row_that_sees_nothing_is_zero_but_for_the_bias():
    mixer, x = built("full", bias=False), tokens()
    seen, places = everything()
    seen = seen.clone()
    seen[0, 3] = False
    assert torch.equal(masked_mix(mixer, x, seen, places)[0, 3], torch.zeros(DIM).double())


@pytest.mark.parametrize(
    "spec", ["performer", "reformer", "linformer", "fnet", "longformer", "lstm", "compressive"]
)
def test_others_refuse(spec):
    causal = not MIXERS.parse(spec).traits.bidirectional
    with pytest.raises(Unsupported, match="cannot read under masks of pairs"):
        check_masked(built(spec, causal=causal, length=N))


def test_projections_of_one_token_at_a_time():
    mixer, x = built("full", projection=Multiplicative(modules=3)), tokens()
    torch.testing.assert_close(masked_mix(mixer, x, *everything()), mixer(x))
    with pytest.raises(Unsupported, match="projections read neighbours"):
        check_masked(built("full", projection=MultiplicativeConv(modules=3)))


def test_a_causal_mixer_refuses():
    with pytest.raises(Unsupported, match="cannot read under masks of pairs"):
        check_masked(built("full", causal=True))
