"""The mesh as a setting: sizes, the rest, and refusals that name the way out."""

import pytest

from weft.config import read, write
from weft.errors import WeftError
from weft.scale import AXES, Mesh


def test_axes_multiply_to_the_number_of_processes():
    assert Mesh(dp_shard=2, tp=4).fitted(8) == Mesh(dp_shard=2, tp=4)


@pytest.mark.parametrize("axis", ["dp_replicate", "dp_shard"])
def test_the_rest_is_filled_in(axis):
    assert getattr(Mesh(**{axis: -1}, tp=2).fitted(8), axis) == 4


@pytest.mark.parametrize(
    ("mesh", "processes"), [(Mesh(), 2), (Mesh(tp=2), 3), (Mesh(dp_shard=-1, tp=2), 3)]
)
def test_a_mesh_that_does_not_fit_names_the_way_out(mesh, processes):
    with pytest.raises(WeftError, match=rf"(is|are) {processes}; start with torchrun"):
        mesh.fitted(processes)


@pytest.mark.parametrize("wrong", [{"tp": 0}, {"tp": -1}, {"dp_shard": -2}, {"cp": 0}])
def test_ways_are_positive(wrong):
    with pytest.raises(WeftError, match="at least 1"):
        Mesh(**wrong)


def test_only_one_axis_is_the_rest():
    with pytest.raises(WeftError, match="got both"):
        Mesh(dp_replicate=-1, dp_shard=-1)


def test_settings_round_trip():
    mesh = read(Mesh, {"dp_shard": 2, "ep": 2}, "mesh")
    assert mesh.sizes == tuple(dict(dp_shard=2, ep=2).get(name, 1) for name in AXES)
    assert read(Mesh, write(mesh), "mesh") == mesh
