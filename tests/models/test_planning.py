"""`weft.plan` says what runs: compared with what a real pass notes, for every mixer and a model."""

import pytest
import torch

import weft
from weft.errors import Unsupported, WeftError
from weft.kernels.planner.context import recording
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Classifier, Encoder, Stack

SHAPE = (2, 70, 32)


def frames():
    return ({"heads": 2, "causal": causal} for causal in (False, True))


@pytest.mark.parametrize("name", sorted(MIXERS))
def test_a_mixer_is_planned_as_it_runs(name):
    config = MIXERS[name].variants()[0] if hasattr(MIXERS[name], "variants") else MIXERS[name]()
    for given in frames():
        try:
            mixer = config.build(Frame(dim=SHAPE[2], length=SHAPE[1], **given)).eval()
        except Unsupported:
            continue
        with recording() as real, torch.no_grad():
            mixer(torch.randn(SHAPE))
        real = [choice._replace(place="") for choice in real]
        for subject, settings in ((mixer, {}), (config, given)):
            found = weft.plan(subject, SHAPE, device="cpu", **settings)
            assert [choice._replace(place="") for choice in found] == real


MODEL = Classifier(
    trunk=Encoder(
        embedding=Embedding(vocab=9),
        stack=Stack(
            frame=Frame(dim=32, heads=2, length=4096),
            order="sfsf",
            mixer="sliding_window(window=9)",
        ),
    ),
    classes=3,
)


def test_a_model_is_planned_by_layer():
    found = weft.plan(MODEL, (1, 4096), device="cpu")
    assert found.kernels == ("gather", "gather")
    assert len({choice.place for choice in found}) == 2, "each layer has its place"
    module = MODEL.build().eval()
    assert all(choice.place in dict(module.named_modules()) for choice in found)
    assert list(weft.plan(module, (1, 4096))) == list(found)
    assert list(weft.plan(module, torch.zeros(1, 4096, dtype=torch.long))) == list(found)
    assert found[0].place in str(found)


def test_a_gpu_need_not_be_there():
    half = {"device": "cuda", "dtype": torch.bfloat16}
    assert weft.plan(MODEL, (1, 4096), **half).kernels == ("triton", "triton")
    assert weft.plan(MODEL.build(), (1, 4096), **half, compiled=True)[0].reason == (
        "an operator of the graph"
    )
    wide = weft.plan(MODEL, (1, 4096), device="cuda", dtype=torch.float32)[0]
    assert (wide.kernel, wide.rejected) == (
        "flex",
        ("triton: takes float16 and bfloat16; got float32",),
    )


def test_kernels_outside_graphs_are_planned_outside():
    given = {"heads": 2, "device": "cuda", "dtype": torch.bfloat16, "compiled": True}
    assert weft.plan("sinkhorn", (1, 4096, 32), **given).kernels == ("triton",)
    (found,) = weft.plan("linear_transformer", (1, 4096, 32), causal=True, **given)
    assert found.rejected == ("triton: cannot be part of a compiled graph",)


@pytest.mark.parametrize("name", ["performer", "rfa", "linear_transformer"])
def test_what_would_not_run_on_a_gpu_is_not_listed(name):
    """Where the fast kernel takes the call, the plain form is not asked again."""
    given = {"heads": 2, "device": "cuda", "dtype": torch.bfloat16, "causal": True}
    assert weft.plan(name, (1, 4096, 32), **given).kernels == ("triton",)


def test_nothing_of_a_module_is_changed():
    mixer = MIXERS.parse("routing").build(Frame(dim=32, heads=2, dropout=0.1)).train()
    state = {name: x.clone() for name, x in mixer.state_dict().items()}
    weft.plan(mixer, (1, 64, 32))
    weft.plan(mixer, (1, 64, 32), dtype=torch.float64)
    assert all(torch.equal(x, state[name]) for name, x in mixer.state_dict().items())
    assert mixer.training
    assert not mixer._forward_hooks


def test_random_numbers_are_drawn_as_without_a_plan():
    """Spans are numbers, so a real copy runs, with dropout."""
    mixer = MIXERS.parse("adaptive_span").build(Frame(dim=32, heads=2, dropout=0.1)).train()
    before = torch.get_rng_state()
    weft.plan(mixer, (1, 64, 32))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_mechanism_that_reads_numbers_runs_on_real_ones():
    mixer = MIXERS.parse("adaptive_span(span=64)").build(Frame(dim=32, heads=2))
    assert weft.plan(mixer, (1, 4096, 32)).kernels == ("gather",)


def test_patterns():
    pattern = weft.Causal() & weft.Sliding(64)
    (one,) = weft.plan(pattern, (1, 8, 4096, 64))
    assert one.kernel == "gather"
    assert weft.plan(str(pattern), torch.empty(1, 8, 4096, 64)) == (one,)
    found = weft.plan("per_head(sliding(8), full)", (1, 8, 4096, 64))
    assert [(choice.place, choice.kernel) for choice in found] == [
        ("4 heads", "gather"),
        ("4 heads", "sdpa"),
    ]
    asked = weft.plan(pattern, (1, 8, 4096, 64), kernel="dense", device="cuda")
    assert asked[0][:2] == ("dense", "requested")
    padded = weft.plan(pattern, (1, 8, 4096, 64), masked=True)
    assert padded.kernels == ("gather",)
    assert weft.plan(weft.Full(), (1, 8, 64, 64), (1, 8, 256, 64)).kernels == ("sdpa",)


@pytest.mark.parametrize(
    ("args", "settings", "message"),
    [
        (("longformr", (1, 64, 32)), {}, "did you mean 'longformer'"),
        (("longformer",), {}, "plan needs the shape of an input"),
        ((weft.Sliding(3), (1, 64, 32)), {}, r"q and k are \(batch, heads, length, width\)"),
        ((weft.Sliding(3), (1, 2, 64, 32)), {"maskd": True}, "no setting maskd"),
        ((3, (1, 64, 32)), {}, "plan takes a pattern, a mixer, a model"),
        ((torch.zeros(1, 2, 4, 8), "causal()"), {}, "what is asked about comes first"),
        (("longformer", (64, 32)), {}, r"a mixer reads x \(batch, length, width\)"),
        (("longformer", (1, 64, 32)), {"kernel": "fast"}, "kernel is one of auto"),
        ((torch.nn.Linear(3, 3), (1, 3)), {"heads": 2}, "a module has its settings already"),
    ],
)
def test_bad_input(args, settings, message):
    with pytest.raises(WeftError, match=message):
        weft.plan(*args, **settings)
