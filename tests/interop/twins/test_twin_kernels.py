"""What runs on a GPU alone, by Triton's interpreter on a CPU."""

import pytest
import torch
import transformers as T

import weft.interop.hf.twins.bigbird
from weft.interop import accelerate
from weft.kernels.dropout_add import DropoutAdd, dropout_add


def bigbird():
    sizes = {"vocab_size": 20, "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
             "intermediate_size": 8, "max_position_embeddings": 512, "hidden_dropout_prob": 0.0,
             "num_random_blocks": 1}  # fmt: skip
    return T.BigBirdModel(T.BigBirdConfig(**sizes), add_pooling_layer=False)


@pytest.mark.long
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_heads_walk_lists_of_their_own(monkeypatch, training):
    """A block that a list names twice counts twice; heads draw blocks of their own."""
    monkeypatch.setattr(weft.interop.hf.twins.bigbird, "takes_several", lambda q, block: True)
    torch.manual_seed(0)
    model = bigbird().train(training)
    ids = torch.randint(0, 20, (2 if training else 1, 500))
    mask = torch.ones_like(ids)
    mask[-1, 450:] = 0
    results = []
    for _ in range(2):
        model.zero_grad()
        out = model(input_ids=ids, attention_mask=mask).last_hidden_state
        out.square().sum().backward()
        own = model.encoder.layer[0].attention.self
        results.append((out.detach(), own.query.weight.grad, own.key.weight.grad))
        accelerate(model)
    for found, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_dropout_add_draws_again():
    """The gradient drops what the forward pass dropped; the rate and the mean hold."""
    torch.manual_seed(0)
    y, x = torch.ones(64, 100, requires_grad=True), torch.zeros(64, 100, requires_grad=True)
    out = DropoutAdd.apply(y, x, 0.25)
    kept = out != 0
    assert 0.72 < kept.float().mean() < 0.78
    torch.testing.assert_close(out, kept / 0.75)
    out.backward(torch.full_like(out, 3.0))
    torch.testing.assert_close(y.grad, kept * 4.0)
    assert (x.grad == 3.0).all()
    assert not torch.equal(DropoutAdd.apply(y, x, 0.25) != 0, kept)
    assert torch.equal(dropout_add(y, x, 0.25, training=False), y)
