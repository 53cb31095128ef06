"""Every output against its equation, torch's adaptive softmax, and its own scores."""

import pytest
import torch
import torch.nn.functional as F

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.layers.outputs import (
    OUTPUTS,
    AdaptiveSoftmax,
    Factorised,
    Linear,
    MixtureOfSoftmaxes,
)

DIM, VOCAB = 16, 23
CUTS = {"cutoffs": (5, 11), "frequent": (3, 22, 7, 0)}
UNTIED = [
    Linear(),
    Linear(chunk=4),
    Factorised(factor=3),
    Factorised(factor=3, chunk=2),
    MixtureOfSoftmaxes(parts=4),
    MixtureOfSoftmaxes(parts=2, chunk=5),
    AdaptiveSoftmax(**CUTS),
    AdaptiveSoftmax(cutoffs=(9,), projects=False),
]
TIED = [
    (Linear(), {}),
    (Linear(chunk=3), {}),
    (Factorised(factor=3), {"factor": 3}),
    (MixtureOfSoftmaxes(parts=3), {}),
    (AdaptiveSoftmax(**CUTS), CUTS),
]


def built(config, tied=None):
    """The output in float64, all of it stirred."""
    torch.manual_seed(0)
    output = config.build(DIM, VOCAB, tied).double()
    with torch.no_grad():
        for parameter in output.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return output


def hidden(*shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, DIM, generator=generator, dtype=torch.float64)


def targets(*shape, seed=2):
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def loss_gap(output, h, y, chosen):
    """Losses, best tokens and gradients of `loss` against those of the scores."""
    found = []
    for fused in (True, False):
        if fused:
            loss, best = output.loss(h, y, chosen)
        else:
            scores = output.scores(h)
            loss = -scores.log_softmax(-1).gather(-1, y[..., None])[..., 0] * chosen
            best = scores.argmax(-1)
        slopes = torch.autograd.grad(loss.square().sum(), [h, *output.parameters()])
        found.append([loss.detach(), best.double(), *slopes])
    return max((a - b).abs().max().item() for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("config", UNTIED, ids=str)
def test_the_loss_is_that_of_the_scores(config):
    output = built(config)
    h, y = hidden(3, 7).requires_grad_(), targets(3, 7)
    chosen = torch.rand(3, 7, generator=torch.Generator().manual_seed(4)) < 0.7
    assert loss_gap(output, h, y, chosen) < 1e-10
    honest = output.loss
    output.loss = lambda h, y, chosen: honest(h, (y + 1) % VOCAB, chosen)
    assert loss_gap(output, h, y, chosen) > 1e-3


@pytest.mark.parametrize("config", UNTIED, ids=str)
def test_probabilities_sum_to_one(config):
    scores = built(config).scores(hidden(2, 3))
    assert scores.shape == (2, 3, VOCAB)
    torch.testing.assert_close(scores.softmax(-1).sum(-1), torch.ones(2, 3, dtype=torch.float64))
    if config.name in ("adaptive_softmax", "mixture_of_softmaxes"):
        torch.testing.assert_close(scores.softmax(-1), scores.exp())


def test_linear_is_a_product():
    output, h = built(Linear()), hidden(4)
    torch.testing.assert_close(output.scores(h), torch.einsum("nc,vc->nv", h, output.weight))


def test_factorised_is_a_product_through_a_waist():
    output, h = built(Factorised(factor=3)), hidden(4)
    full = torch.einsum("ce,ve->vc", output.waist, output.weight)
    assert torch.linalg.matrix_rank(full) == 3
    torch.testing.assert_close(output.scores(h), torch.einsum("nc,vc->nv", h, full))


def test_a_mixture_is_a_mean_of_softmaxes():
    output, h = built(MixtureOfSoftmaxes(parts=4)), hidden(5)
    weights = output.to_prior(h).softmax(-1)  # (n, k)
    expected = 0
    for k in range(4):
        rows = slice(k * DIM, (k + 1) * DIM)
        part = torch.tanh(h @ output.to_parts.weight[rows].T + output.to_parts.bias[rows])
        expected = expected + weights[:, k, None] * (part @ output.weight.T).softmax(-1)
    torch.testing.assert_close(output.scores(h).exp(), expected)


def test_a_mixture_breaks_the_rank_of_one_softmax():
    """Log-probabilities of many states have rank c + 1 at most with one part, more with several."""
    ranks = []
    for parts in (1, 4):
        torch.manual_seed(0)
        output = MixtureOfSoftmaxes(parts=parts).build(4, VOCAB).double()
        with torch.no_grad():
            output.weight.mul_(100)
        states = 3 * torch.randn(60, 4, dtype=torch.float64)
        ranks.append(torch.linalg.matrix_rank(output.scores(states), rtol=1e-6).item())
    assert ranks[0] <= 5 < ranks[1]


def test_a_mixture_survives_parts_that_are_sure():
    output = built(MixtureOfSoftmaxes(parts=3))
    with torch.no_grad():
        output.weight.mul_(1e4)
    assert output.scores(hidden(3)).isfinite().all()


def torch_twin(output, bias=False):
    """torch's adaptive softmax with the same weights; it knows ranks, not ids."""
    sizes = output.places.sizes
    twin = torch.nn.AdaptiveLogSoftmaxWithLoss(
        DIM, VOCAB, list(output.config.cutoffs), div_value=4.0, head_bias=bias
    ).double()
    with torch.no_grad():
        twin.head.weight.copy_(torch.cat((output.tables[0], output.tails)))
        for i, tail in enumerate(twin.tail, start=1):
            assert tail[1].weight.shape == (sizes[i], DIM // 4**i)
            tail[0].weight.copy_(output.waists[i - 1].T)
            tail[1].weight.copy_(output.tables[i])
    return twin


@pytest.mark.parametrize("cutoffs", [(5,), (5, 11), (1, 22)], ids=str)
def test_adaptive_softmax_equals_torchs(cutoffs):
    output = built(AdaptiveSoftmax(cutoffs=cutoffs, frequent=CUTS["frequent"]))
    twin, h, y = torch_twin(output), hidden(40), targets(40)
    torch.testing.assert_close(output.scores(h)[:, output.ids], twin.log_prob(h))
    got, expected = output.loss(h, y), twin(h, output.ranks[y])
    torch.testing.assert_close(got.loss, -expected.output)
    assert torch.equal(output.ranks[got.best], twin.predict(h))
    with torch.no_grad():
        output.tails.add_(0.1)
    assert (output.loss(h, y).loss + expected.output).abs().max() > 1e-3


def test_without_projection_every_tail_is_wide():
    output, h = built(AdaptiveSoftmax(cutoffs=(9,), projects=False)), hidden(6)
    head = torch.cat((h @ output.tables[0].T, h @ output.tails.T), -1).softmax(-1)
    tail = (h @ output.tables[1].T).softmax(-1) * head[:, 9:]
    torch.testing.assert_close(output.scores(h).exp(), torch.cat((head[:, :9], tail), -1))
    assert not output.waists


@pytest.mark.parametrize(("config", "embedding"), TIED, ids=str)
def test_tied_outputs_train_the_tables_of_the_embedding(config, embedding):
    tied = Embedding(vocab=VOCAB, **embedding).build(DIM).double()
    output = built(config, tied)
    ours = {id(p) for p in output.parameters()}
    assert {id(p) for p in tied.parameters()} & ours
    output.loss(hidden(50), targets(50)).loss.sum().backward()
    for name, parameter in tied.named_parameters():
        # The head of an adaptive softmax reads the first cluster without its projection.
        assert (parameter.grad is None) == (name == "clusters.waists.0"), name


@pytest.mark.parametrize(("config", "embedding"), TIED, ids=str)
def test_tied_scores_start_about_as_large_as_one(config, embedding):
    torch.manual_seed(0)
    tied = Embedding(vocab=4000, **embedding).build(256)
    scores = config.build(256, 4000, tied).scores(torch.randn(30, 256))
    inside = scores[:, 11:]  # of one cluster, where there are several
    assert 0.1 < inside.std(-1).mean() < 1.6


@pytest.mark.parametrize(
    ("config", "embedding", "message"),
    [
        (Linear(), {"rbf_levels": 4}, "one by rbf_levels has none"),
        (Linear(), {"factor": 4}, "table as wide as the model; this embedding has factor=4"),
        (MixtureOfSoftmaxes(), {"cutoffs": (3,)}, r"cutoffs=\(3,\)"),
        (Factorised(factor=4), {"factor": 5}, r"factor=4 and Embedding\(factor=5\)"),
        (AdaptiveSoftmax(cutoffs=(3,)), {"cutoffs": (4,)}, "same cutoffs, shrink and frequent"),
        (AdaptiveSoftmax(cutoffs=(3,), projects=False), {"cutoffs": (3,)}, "projects=True"),
    ],
    ids=str,
)
def test_refuses_to_tie(config, embedding, message):
    with pytest.raises(WeftError, match=message):
        config.check(Embedding(vocab=VOCAB, **embedding), True)
    config.check(Embedding(vocab=VOCAB, **embedding), False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(chunk=0), "at least 1; got 0"),
        (lambda: Factorised(factor=0), "width of the bottleneck, at least 1; got 0"),
        (lambda: MixtureOfSoftmaxes(parts=0), "got parts=0"),
        (lambda: AdaptiveSoftmax(cutoffs=()), "at least one cutoff"),
        (lambda: built(AdaptiveSoftmax(cutoffs=(5, 5))), "cutoffs rise"),
        (lambda: built(AdaptiveSoftmax(cutoffs=(VOCAB,))), "cutoffs rise"),
        (lambda: built(AdaptiveSoftmax(cutoffs=(5,), frequent=(1, 1))), "each once"),
        (lambda: built(AdaptiveSoftmax(cutoffs=(5,), shrink=0)), "divides the width"),
        (lambda: OUTPUTS.parse("liner"), "did you mean 'linear'"),
    ],
    ids=range(9),
)
def test_refuses(make, message):
    with pytest.raises(WeftError, match=message):
        make()


@pytest.mark.parametrize("config", UNTIED, ids=str)
def test_specs_read_back(config):
    assert OUTPUTS.parse(str(config)) == config


def test_a_chunked_mixture_holds_less(monkeypatch):
    """The widest tensor inside the loss is one chunk of scores, not all of them."""
    widest = []
    honest = F.cross_entropy

    def watched(scores, *given, **named):
        widest.append(scores.numel())
        return honest(scores, *given, **named)

    monkeypatch.setattr(F, "cross_entropy", watched)
    built(MixtureOfSoftmaxes(parts=2, chunk=5)).loss(hidden(17), targets(17))
    assert max(widest) == 5 * VOCAB
