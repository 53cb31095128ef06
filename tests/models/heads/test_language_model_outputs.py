"""Each output inside whole language models: losses, decoding, saving, tying, memory."""

import pytest
import torch
from model_parts import DIM, VOCAB, built, decoder, encoder, ids

from weft.layers.outputs import OUTPUTS
from weft.mixers import MIXERS
from weft.models import EncoderDecoder, LanguageModel, config_from_dict, config_to_dict, load, save
from weft.objectives import Batch, CausalLM, Head, MaskedLM

FULL = MIXERS["full"]
CASES = {
    "linear tied": ("linear", True, {}),
    "linear": ("linear(chunk=3)", False, {}),
    "fused tied": ("linear(chunk=4)", True, {}),
    "factorised": ("factorised(factor=3)", False, {"factor": 2}),
    "factorised tied": ("factorised(factor=3, chunk=4)", True, {"factor": 3}),
    "adaptive input": ("linear", False, {"cutoffs": (3, 7), "shrink": 2}),
    "adaptive softmax": ("adaptive_softmax(cutoffs=[4], shrink=2)", False, {}),
    "adaptive, no projection": ("adaptive_softmax(cutoffs=[4], projects=false)", False, {}),
    "adaptive tied": (
        "adaptive_softmax(cutoffs=[3, 7], shrink=2, frequent=[5])",
        True,
        {"cutoffs": (3, 7), "shrink": 2, "frequent": (5,)},
    ),
    "mixture": ("mixture_of_softmaxes(parts=3)", False, {}),
    "mixture tied": ("mixture_of_softmaxes(parts=2, chunk=4)", True, {}),
    "sparse": ("sparse(modules=1, chunk=5)", False, {}),
    "bounded, with a bias": (
        "linear(logit_scale=0.5, logit_bias=true, softcap=2.0, chunk=3)",
        True,
        {"types": 2, "multiplier": 2.0},
    ),
    "projected": ("projected(width=5, between=tanh)", False, {}),
    "projected tied": ("projected(chunk=4)", True, {}),
    "projected, widened sum": ("projected(width=3)", True, {"factor": 3, "sum_norm": {}}),
}


def config(case, trunk=decoder, **settings):
    output, tied, embed = CASES[case]
    inside = trunk(embed=embed, mixer=FULL(), **settings)
    return LanguageModel(trunk=inside, tied=tied, output=OUTPUTS.parse(output))


def test_every_output_is_tried():
    assert {OUTPUTS.parse(case[0]).name for case in CASES.values()} == set(OUTPUTS)


@pytest.mark.parametrize("case", CASES)
def test_decodes_step_by_step(case):
    model = built(config(case)).eval()
    x = ids(2, 6)
    first, state = model.step(x[:, :2], model.start(2))
    second, _ = model.step(x[:, 2:], state)
    torch.testing.assert_close(torch.cat((first, second), 1), model(x))
    grown = x[:, :3]
    for _ in range(3):
        grown = torch.cat((grown, model(grown)[:, -1:].argmax(-1)), 1)
    assert torch.equal(model.generate(x[:, :3], 3), grown)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("objective", [CausalLM(), MaskedLM(rate=0.5)], ids=lambda o: o.name)
def test_objectives_learn_the_same_loss(case, objective, monkeypatch):
    """The loss and the gradients with a fused output are those from the model's scores."""
    kind = decoder if objective.name == "causal_lm" else encoder
    model = built(config(case, kind))
    valid = torch.arange(8) < torch.tensor([[8], [5], [1]])
    batch = Batch(x=ids(3, 8) % (VOCAB - 1), valid=valid)
    found = []
    for fused in (model.fused, False):
        monkeypatch.setattr(type(model), "fused", fused)
        loss = objective.loss(model, batch, torch.Generator().manual_seed(3))
        slopes = torch.autograd.grad(loss.total, list(model.parameters()), allow_unused=True)
        found.append([loss.total, loss.count, loss.right, *slopes])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("case", CASES)
def test_saved_models_come_back(case, tmp_path):
    model = built(config(case), dtype=torch.float32).eval()
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    assert torch.equal(again(ids(2, 5)), model(ids(2, 5)))


def test_a_config_from_before_outputs_is_plain():
    old = config_to_dict(config("linear tied"))
    del old["output"]
    for name in ("factor", "cutoffs", "shrink", "frequent"):
        del old["trunk"]["embedding"][name]
    assert config_from_dict(old) == config("linear tied")


@pytest.mark.parametrize("tied", [True, False])
def test_plain_models_keep_the_names_of_their_tensors(tied, tmp_path):
    from safetensors.torch import load_file

    model = LanguageModel(trunk=decoder(), tied=tied).build()
    found = load_file(save(model, tmp_path / "model") / "model.safetensors")
    assert ("head" in found) is not tied
    assert "trunk.embedding.table" in found
    assert not any(name.startswith("output") for name in found)


@pytest.mark.parametrize(
    ("shares", "tied", "tables"),
    [(True, True, 1), (True, False, 2), (False, True, 2), (False, False, 3)],
    ids=["all", "inputs", "decoder", "none"],
)
def test_tying_in_each_way(shares, tied, tables):
    """Each pair that is untied costs one more table."""
    reading = decoder(order="scf", mixer=FULL(), cross=FULL())
    both = EncoderDecoder(encoder=encoder(mixer=FULL()), decoder=reading, shares_embedding=shares)
    model = LanguageModel(trunk=both, tied=tied).build()
    seen = [p for p in model.parameters() if p.shape == (VOCAB, DIM)]
    assert len(seen) == tables
    model(ids(2, 5), source=ids(2, 4)).sum().backward()
    assert all(p.grad is not None for p in seen)


@pytest.mark.parametrize("embed", [{"factor": 3}, {"cutoffs": (4,), "shrink": 2}], ids=str)
def test_narrow_tables_are_shared_by_both_inputs(embed):
    reading = decoder(embed=embed, order="scf", mixer=FULL(), cross=FULL())
    both = EncoderDecoder(
        encoder=encoder(embed=embed, mixer=FULL()), decoder=reading, shares_embedding=True
    )
    module = both.build()
    assert torch.equal(module.encoder.embedding(ids(1, 9)), module.decoder.embedding(ids(1, 9)))


def test_the_head_of_a_task_chooses_the_output():
    head = Head(tied=False, output=OUTPUTS.parse("factorised(factor=2)"))
    made = CausalLM().build(encoder(), head)
    assert (made.tied, str(made.output)) == (False, "factorised(factor=2)")


def test_training_never_holds_all_scores():
    """Bytes of the widest tensor that any operation makes, counted by the dispatcher."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Widest(TorchDispatchMode):
        most = 0

        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            out = operation(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, tuple | list) else [out]:
                if isinstance(tensor, torch.Tensor):
                    self.most = max(self.most, tensor.nbytes)
            return out

    def widest(output):
        trunk = decoder(embed={"vocab": 3000}, mixer=FULL())
        head = Head(output=OUTPUTS.parse(output))
        model = CausalLM().build(trunk, head).build()
        with Widest() as mode:
            x = torch.arange(400).view(10, 40)
            CausalLM().loss(model, Batch(x=x), torch.Generator()).total.backward()
        return mode.most

    scores = 400 * 3000 * 4
    assert widest("linear") >= scores * 39 / 40
    assert widest("linear(chunk=20)") <= max(20 * 3000, 3000 * DIM) * 4
