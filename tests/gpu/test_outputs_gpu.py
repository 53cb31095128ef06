"""Outputs on a GPU: the fused loss against float64 on the CPU, and the memory that it takes."""

import pytest
import torch

from weft.layers.outputs import AdaptiveSoftmax, Linear, MixtureOfSoftmaxes

pytestmark = pytest.mark.gpu
ROWS, DIM, VOCAB = 4096, 64, 8192


def case(dtype):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64)
    targets = torch.randint(VOCAB, (ROWS,), generator=generator)
    return rows.to(dtype), targets


def gradients(output, rows, targets):
    rows = rows.detach().requires_grad_()
    loss, _ = output.loss(rows, targets)
    slopes = torch.autograd.grad(loss.sum() / ROWS, [rows, *output.parameters()])
    return [loss.detach(), *slopes]


@pytest.mark.parametrize(
    "config",
    [Linear(chunk=512), MixtureOfSoftmaxes(parts=2, chunk=512), AdaptiveSoftmax(cutoffs=(512,))],
    ids=str,
)
def test_the_loss_is_the_cpus(config):
    torch.manual_seed(0)
    output = config.build(DIM, VOCAB).double()
    rows, targets = case(torch.float64)
    expected = gradients(output, rows, targets)
    got = gradients(output.cuda(), rows.cuda(), targets.cuda())
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-12)


def peak(config):
    torch.manual_seed(0)
    output = config.build(DIM, VOCAB).cuda()
    rows, targets = (part.cuda() for part in case(torch.float32))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", torch.bfloat16):
        loss, _ = output.loss(rows.requires_grad_(), targets)
    loss.sum().backward()
    return torch.cuda.max_memory_allocated() - before


def test_the_fused_loss_holds_a_chunk_of_scores():
    scores = ROWS * VOCAB * 4
    assert peak(Linear()) > scores
    assert peak(Linear(chunk=256)) < scores / 4
