"""Twins compute what Transformers computes, with its own parameters, and can be undone."""

import pytest
import torch
import transformers as T

from weft.errors import Unsupported
from weft.interop import accelerate

SIZES = {
    "vocab_size": 50,
    "attention_window": [4, 6],
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}


def longformer():
    sizes = {**SIZES, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 64}
    return T.LongformerForMaskedLM(T.LongformerConfig(**sizes))


def led():
    sizes = {"vocab_size": 50, "attention_window": [4, 6], "d_model": 16, "encoder_layers": 2,
             "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
             "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_encoder_position_embeddings": 64,
             "max_decoder_position_embeddings": 64}  # fmt: skip
    return T.LEDForConditionalGeneration(T.LEDConfig(**sizes))


def run(model, marked):
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 50, (2, 20), generator=draw)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, 15:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if marked:
        given["global_attention_mask"] = torch.zeros_like(mask)
        given["global_attention_mask"][0, 3] = given["global_attention_mask"][1, 0] = 1
    logits = model(**given).logits
    model.zero_grad()
    real = logits if logits.shape[1] != 20 or model.config.is_encoder_decoder else logits[mask > 0]
    real.square().sum().backward()
    return real.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("make", [longformer, led])
@pytest.mark.parametrize("marked", [False, True])
def test_is_theirs(make, marked):
    torch.manual_seed(0)
    model = make().eval()
    names = list(model.state_dict())
    expected, theirs = run(model, marked)
    assert accelerate(model) is model
    assert list(model.state_dict()) == names
    found, ours = run(model, marked)
    assert not torch.equal(found, expected)  # another computation
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    for name, grad in ours.items():
        torch.testing.assert_close(grad, theirs[name], rtol=1e-3, atol=1e-4, msg=name)
    accelerate(model, undo=True)
    assert torch.equal(run(model, marked)[0], expected)


def test_others_are_refused():
    model = T.BertModel(T.BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1))
    with pytest.raises(Unsupported, match="no twin for the attention of BertModel"):
        accelerate(model)
