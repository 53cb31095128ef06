"""The sparse output: a factored matrix, as few parameters as said, trained like any other."""

import pytest
import torch
import torch.nn.functional as F

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.outputs import OUTPUTS, SparseLinear
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack, load, save


def stirred(output):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return output.double()


def model(**output):
    stack = Stack(frame=Frame(dim=8, heads=2), order="sf", feedforward="sparse(block=4)")
    trunk = Decoder(embedding=Embedding(vocab=12), stack=stack)
    return LanguageModel(trunk=trunk, tied=False, output=SparseLinear(**output))


@pytest.mark.parametrize("count", [1, 9], ids=["few tokens", "many tokens"])
def test_scores_are_its_equation(count):
    output, h = stirred(SparseLinear(modules=4).build(6, 20)), torch.randn(count, 6).double()
    d, e = output.map.scale, output.map.weight  # (4, 6), (6, 5)
    expected = torch.einsum("ti,si,im->tsm", h, d, e).reshape(count, 20) + output.map.bias
    torch.testing.assert_close(output.scores(h), expected)
    swapped = torch.einsum("ti,si,im->tms", h, d, e).reshape(count, 20) + output.map.bias
    assert not torch.allclose(output.scores(h), swapped)


def test_has_as_few_parameters_as_said():
    output = SparseLinear(modules=4).build(64, 1000)
    assert sum(p.numel() for p in output.parameters()) == 64 * (4 + 250) + 1000


@pytest.mark.parametrize("chunk", [None, 3], ids=["whole", "chunks"])
def test_the_loss_is_cross_entropy(chunk):
    output = stirred(SparseLinear(modules=2, chunk=chunk).build(6, 10))
    h, y = torch.randn(2, 5, 6).double(), torch.arange(10).view(2, 5)
    loss, best = output.loss(h, y)
    expected = F.cross_entropy(output.scores(h).flatten(0, 1), y.flatten(), reduction="none")
    torch.testing.assert_close(loss.flatten(), expected)
    assert torch.equal(best, output.scores(h).argmax(-1))
    assert SparseLinear(chunk=chunk).fused == (chunk is not None)


def test_a_language_model_decodes_saves_and_loads_with_it(tmp_path):
    torch.manual_seed(0)
    built = model(modules=4).build().eval()
    ids = torch.arange(10)[None] % 12
    scores, state = built.step(ids[:, :4], built.start(1))
    rest, _ = built.step(ids[:, 4:], state)
    torch.testing.assert_close(torch.cat((scores, rest), 1), built(ids), rtol=1e-4, atol=1e-5)
    again = load(save(built, tmp_path / "model"))
    assert again.config == built.config
    assert torch.equal(again(ids), built(ids))


def test_refuses_what_cannot_be():
    with pytest.raises(WeftError, match="tied=False"):
        LanguageModel(trunk=model().trunk, tied=True, output=SparseLinear())
    with pytest.raises(WeftError, match="not a multiple of modules=5"):
        SparseLinear(modules=5).build(8, 12)
    with pytest.raises(WeftError, match="modules"):
        SparseLinear(modules=0)
    assert OUTPUTS.parse("sparse(modules=2)") == SparseLinear(modules=2)
