"""Random experiments through TOML, JSON and spec strings: they come back equal."""

import json
import tomllib

import tomli_w
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.arena.experiment.model import Model
from weft.arena.experiment.settings import Experiment, experiment
from weft.config import changed
from weft.errors import WeftError
from weft.feedforward import FEEDFORWARDS
from weft.layers.outputs import OUTPUTS
from weft.layers.positions import POSITIONS
from weft.mixers import MIXERS
from weft.models.registry import MODELS
from weft.testing.cases import variants

mixers = st.sampled_from([str(own) for name in MIXERS for own in variants(MIXERS[name])])
feedforwards = st.sampled_from(
    [str(own) for n in FEEDFORWARDS for own in variants(FEEDFORWARDS[n])]
)
positions = st.sampled_from([n for n in POSITIONS if n != "rope2d"])
outputs = st.sampled_from([n for n in OUTPUTS if n != "adaptive_softmax"])


def one_or_several(specs):
    return specs | st.lists(specs, min_size=2, max_size=2)


frames = st.fixed_dictionaries(
    {"dim": st.sampled_from([8, 16, 24])},
    optional={
        "heads": st.sampled_from([1, 2, 4]),
        "head_dim": st.none() | st.integers(1, 9),
        "positions": st.none() | positions,
        "dropout": st.sampled_from([0, 0.1]),
        "bias": st.booleans(),
    },
)
stacks = st.fixed_dictionaries(
    {"frame": frames, "layers": st.sampled_from([2, 4])},
    optional={
        "mixer": one_or_several(mixers),
        "feedforward": one_or_several(feedforwards),
        "norm": st.fixed_dictionaries({"kind": st.sampled_from(["layer", "rms"])}),
        "residual": st.sampled_from(["plain", "rezero"]),
        "depth": st.sampled_from(["plain", "layer_drop(rate=0.3)", "universal(steps=2)"]),
        "shared": st.integers(0, 2),
        "dropout": st.sampled_from([0.0, 0.25]),
        "layer_heads": st.just([2, 4]),
    },
)
embeddings = st.fixed_dictionaries(
    {},
    optional={
        "positions": st.sampled_from(["none", "sinusoidal", "learned"]),
        "registers": st.integers(0, 2),
        "rbf_levels": st.none() | st.integers(2, 9),
        "factor": st.none() | st.integers(1, 9),
    },
)
kinds = st.sampled_from(
    ["encoder", "decoder", "funnel(blocks=2)", "power_bert(keep=[1.0, 0.5])", "encoder_decoder"]
)
heads = st.fixed_dictionaries(
    {}, optional={"pool": st.sampled_from(["mean", "max", "last"]), "output": outputs}
)
tables = st.fixed_dictionaries(
    {"stack": stacks, "embedding": embeddings, "head": heads}, optional={"trunk": kinds}
)
trainings = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.integers(1, 9),
        "clip": st.none() | st.floats(0.5, 2),
        "frozen": st.lists(st.text(min_size=1, max_size=5), max_size=2),
    },
)


def as_toml(value):
    if isinstance(value, dict):
        return {key: as_toml(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_toml(inner) for inner in value]
    return "none" if value is None else value


@settings(max_examples=60, deadline=None)
@given(tables, trainings)
def test_experiments_come_back(table, training):
    try:
        model = changed(Model(), table)
    except WeftError:
        assume(False)
    one = changed(Experiment(task="listops", model=model), {"training": training})
    written = one.tables()
    assert experiment(json.loads(json.dumps(written))) == one
    assert experiment(tomllib.loads(tomli_w.dumps(as_toml(written)))) == one
    assert MODELS.parse(str(one.model.trunk)) == one.model.trunk
