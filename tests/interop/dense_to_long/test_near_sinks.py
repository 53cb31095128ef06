"""First tokens at the nearest position, against attention query by query at explicit distances."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

from weft.interop.hf.dense_to_long.form import lengthen, restore, set_form
from weft.interop.hf.plug.use import cache

WINDOW, FIRST, N = 8, 3, 60


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=32,
        eos_token_id=None, initializer_range=0.2,
    )  # fmt: skip
    return lengthen(LlamaForCausalLM(config).double().eval(), N, "sliding(8) | keys(first=3)")


@pytest.fixture
def ids():
    return torch.randint(3, 64, (2, N), generator=torch.Generator().manual_seed(1))


def rotated(x, distance, frequencies):
    angle = distance * frequencies
    first, second = x.chunk(2, dim=-1)
    turned = (
        first * angle.cos() - second * angle.sin(),
        second * angle.cos() + first * angle.sin(),
    )
    return torch.cat(turned, dim=-1)


def by_distance(frequencies):
    """Attention from unrotated queries and keys, one pair after another."""

    def run(module, q, k, v, mask, scaling=None, **others):
        share = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
        place = torch.arange(q.shape[2])[:, None].double()
        q, k = (rotated(x, -place, frequencies) for x in (q, k))
        out = torch.zeros_like(q)
        for i in range(q.shape[2]):
            seen = [j for j in range(i + 1) if i - j < WINDOW or j < FIRST]
            far = [i - j if i - j < WINDOW else min(i, WINDOW + FIRST - 1) - j for j in seen]
            scores = [
                (rotated(q[:, :, i], float(d), frequencies) * k[:, :, j]).sum(-1)
                for j, d in zip(seen, far, strict=True)
            ]
            weights = (torch.stack(scores, -1) * scaling).softmax(-1)
            out[:, :, i] = (weights[..., None] * v[:, :, seen]).sum(2)
        return out.transpose(1, 2).contiguous(), None

    return run


def test_equals_attention_by_distance(model, ids):
    ours = model(ids).logits
    frequencies = model.model.rotary_emb.inv_freq.double()
    AttentionInterface.register("by_distance", by_distance(frequencies))
    AttentionMaskInterface.register("by_distance", lambda *given, **named: None)
    model.set_attn_implementation("by_distance")
    # Angles are float32, as in Transformers.
    assert torch.allclose(model(ids).logits, ours, atol=1e-4)


def test_a_cache_and_pieces_equal_one_forward(model, ids):
    patterns = {"*": "sliding(8) | keys(first=3)", "1": "sliding(8) | columns(4) | keys(first=3)"}
    set_form(model, patterns, 4.0)
    whole, kept = model(ids).logits, cache(model)
    spans = [(0, 30), (30, 31), (31, 32), (32, 60)]
    pieces = [model(ids[:, a:b], past_key_values=kept).logits for a, b in spans]
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-10)
    assert kept.held_keys() == [WINDOW - 1 + FIRST, 23]


def test_padding_changes_nothing(model, ids):
    padded = torch.cat((torch.zeros(2, 5, dtype=torch.long), ids[:, :40]), 1)
    mask = (torch.arange(45) >= 5).long().expand(2, -1)
    place = (mask.cumsum(1) - 1).clamp(min=0)
    found = model(padded, attention_mask=mask, position_ids=place).logits[:, 5:]
    assert torch.allclose(found, model(ids[:, :40]).logits, atol=1e-10)


def test_what_the_config_holds_is_restored(model, ids):
    set_form(model, {"*": "sliding(8) | keys(first=3)", "1": "sliding(8) | columns(4)"}, 4.0)
    again = LlamaForCausalLM(type(model.config).from_dict(model.config.to_dict())).double().eval()
    again.load_state_dict(model.state_dict())
    assert not torch.allclose(again(ids).logits, model(ids).logits, atol=1e-6)
    assert torch.equal(restore(again)(ids).logits, model(ids).logits)
