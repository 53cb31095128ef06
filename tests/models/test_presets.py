"""Presets: shapes and parameter counts by formula, on a device without memory."""

import pytest
import torch

from weft.errors import WeftError
from weft.models import config_from_dict, config_to_dict, load, save
from weft.models.presets import PRESETS, Shape, dense_twin, preset, sparse_twin

TINY = Shape(dim=64, layers=2, heads=4, modules=8)


def parameters(config) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in config.build().parameters())


def sparse_count(dim, layers, modules, block, vocab=32_000):
    wide, rank, units = dim // modules, max(16, dim // block), 6 * dim
    attention = dim * (modules + wide) + 21 * wide**2 + 3 * wide
    feedforward = 2 * dim * units + dim + rank * (dim + units) + units
    return layers * (attention + feedforward + 4 * dim) + 2 * dim + vocab * dim


def dense_count(dim, layers, vocab=32_000):
    return layers * (12 * dim**2 + 9 * dim + 4 * dim) + 2 * dim + vocab * dim


SIZES = {"terraformer_0_8b": (2048, 16, 32), "terraformer_17b": (9216, 17, 64)}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("block", [64, 128])
def test_sparse_presets_have_the_parameters_of_the_formula(name, block):
    dim, layers, modules = SIZES[name]
    # Two layers are built; depth is arithmetic.
    two = parameters(preset(name, block=block, layers=2))
    assert two == sparse_count(dim, 2, modules, block)
    assert parameters(preset(f"{name}_dense", layers=2)) == dense_count(dim, 2)
    assert preset(name).trunk.stack.order == "sf" * layers


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("output", ["linear", "sparse"])
def test_twins_have_as_many_parameters(name, block, output):
    dim, layers, modules = SIZES[name]
    extra = dim * (4 + 8000) + 32_000 if output == "sparse" else 0
    sparse = sparse_count(dim, layers, modules, block) + extra
    dense = dense_count(dim, layers) + extra
    assert abs(sparse - dense) < 0.02 * dense
    one = [parameters(preset(n, output=output, layers=1)) for n in (name, f"{name}_dense")]
    assert one[1] == dense_count(dim, 1) + extra


def test_sizes_are_as_named():
    assert round(sparse_count(2048, 16, 32, 64) / 1e9, 2) == 0.88
    assert round(sparse_count(9216, 17, 64, 64) / 1e9, 1) == 17.8


@pytest.mark.parametrize("twin", [sparse_twin, dense_twin], ids=["sparse", "dense"])
@pytest.mark.parametrize("output", ["linear", "sparse"])
def test_a_small_twin_learns_decodes_saves_and_loads(twin, output, tmp_path):
    torch.manual_seed(0)
    config = twin(TINY, vocab=64, output=output)
    assert config_from_dict(config_to_dict(config)) == config
    model = config.build().double()
    ids = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
    model(ids).square().mean().backward()
    unused = [name for name, p in model.named_parameters() if p.grad is None]
    assert not unused
    model.eval()
    with torch.no_grad():
        state, parts = model.start(2), []
        for piece in ids.split([4, 1, 4], dim=1):
            scores, state = model.step(piece, state)
            parts.append(scores)
        torch.testing.assert_close(torch.cat(parts, dim=1), model(ids))
        assert state.size() == model.state_size(9)
        again = load(save(model, tmp_path / "model"))
        assert again.config == config
        assert torch.equal(again(ids), model(ids))


def test_unknown_names_and_options_are_refused():
    assert set(PRESETS) == {*SIZES, *(f"{name}_dense" for name in SIZES)}
    for call, said in (
        (lambda: preset("terraformer_08b"), "did you mean 'terraformer_0_8b'"),
        (lambda: preset("terraformer_0_8b_dense", block=64), "no option 'block'"),
        (lambda: preset("terraformer_0_8b", output="dense"), "linear, sparse"),
        (lambda: preset("terraformer_0_8b", layers=0), "layers"),
    ):
        with pytest.raises(WeftError, match=said):
            call()
