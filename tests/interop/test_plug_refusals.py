"""What a plug-in cannot do is refused with the rule, the value and the way out."""

import pytest
import torch
import transformers as hf
from plug_models import ENDS, SHARED, TEXT, built, drawn_ids

import weft.interop.hf as interop
from weft.errors import Unsupported, WeftError
from weft.interop.hf.plug import cache as caches
from weft.interop.hf.plug import facts, function
from weft.interop.hf.plug.layers import read_patterns


def longformer():
    return hf.LongformerModel(hf.LongformerConfig(**TEXT, attention_window=[4, 4]))


def bigbird():
    return hf.BigBirdModel(hf.BigBirdConfig(**TEXT, **ENDS))


def xlnet():
    return hf.XLNetModel(hf.XLNetConfig(vocab_size=61, d_model=32, n_layer=2, n_head=4, d_inner=48))


@pytest.mark.parametrize("build", [longformer, bigbird, xlnet])
def test_a_model_that_does_not_dispatch(build):
    with pytest.raises(Unsupported, match=r"in its own code.*run it as it is.*weft mixers"):
        interop.use(build(), "sliding(5)")


def test_a_model_that_ignores_what_is_set():
    """One that claims to dispatch and does not is found in its first forward pass."""
    model = built("bert")
    for layer in model.bert.encoder.layer:
        layer.attention.self.forward = lambda hidden_states, *given, **named: (hidden_states, None)
    interop.use(model, "sliding(5)")
    with pytest.raises(Unsupported, match="the pattern had no effect"):
        model(drawn_ids(1, 8))


def test_capped_scores():
    model = hf.Gemma2ForCausalLM(hf.Gemma2Config(**SHARED, head_dim=8, sliding_window=6))
    with pytest.raises(Unsupported, match=r"attn_logit_softcapping=50\.0"):
        interop.use(model, "sliding(5)")
    model.set_attn_implementation(interop.register("sliding(5)"))
    with pytest.raises(Unsupported, match="softcap"):
        model(drawn_ids(1, 8))


@pytest.mark.parametrize("text", ["~causal", "keys(first=2) | (~causal & sliding(5))"])
def test_a_decoder_does_not_read_ahead(text):
    with pytest.raises(WeftError, match="reads only later positions"):
        interop.use(built("llama"), text)
    model = built("llama", interop.register(text))
    with pytest.raises(WeftError, match="reads only later positions"):
        model(drawn_ids(1, 8))
    interop.use(built("bert"), text)
    interop.use(built("t5"), {"encoder.*": text})


def test_a_cache_of_another_model():
    one, other = built("llama"), built("llama")
    interop.use(one, "sliding(5)")
    interop.use(other, "sliding(6)")
    with pytest.raises(WeftError, match="under other patterns"):
        one(drawn_ids(1, 8), past_key_values=interop.cache(other))
    wide = interop.use(built("mistral"), "sliding(5)")
    cache = interop.cache(wide)
    wide(drawn_ids(1, 8), past_key_values=cache)
    with pytest.raises(WeftError, match="another model or batch"):
        interop.use(one, "sliding(5)")(drawn_ids(2, 8), past_key_values=cache)


def test_a_cache_without_patterns():
    with pytest.raises(WeftError, match="put it under a pattern first"):
        interop.cache(built("llama"))


def test_a_cache_does_not_go_back():
    model = interop.use(built("llama"), "sliding(5)")
    cache = interop.cache(model)
    model(drawn_ids(1, 8), past_key_values=cache)
    with pytest.raises(Unsupported, match="going back would need"):
        cache.crop(-2)


def test_the_length_is_not_known_while_writing():
    model = interop.use(built("llama"), "keys(last=2) | sliding(4)")
    model(drawn_ids(1, 8))
    with pytest.raises(Unsupported, match="use_cache=False"):
        model.generate(drawn_ids(1, 8), max_new_tokens=4)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({}, "empty mapping"),
        ({"x": "full()"}, "a key names layers"),
        ({"3-1": "full()"}, "numbers and spans"),
        ({"0,1": "full()", "1": "full()"}, "layer 1 got two"),
        ({"2": "full()"}, "0 to 1; got a pattern for 2"),
        ({"encoder.*": "full()"}, "sides of an encoder-decoder"),
        ({"*": "slidng(5)"}, "did you mean 'sliding'"),
        (7, "a pattern is a Pattern"),
    ],
)
def test_patterns_that_cannot_be(patterns, message):
    with pytest.raises(WeftError, match=message):
        interop.use(built("llama"), patterns)


def test_not_a_model():
    with pytest.raises(WeftError, match="takes a Transformers model; got Linear"):
        interop.use(torch.nn.Linear(2, 2), "full()")


def test_layers_by_number_need_the_model():
    model = built("bert", interop.register({"0": "sliding(5)"}))
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = None
    with pytest.raises(WeftError, match=r"use\(model"):
        model(drawn_ids(1, 8))
    interop.use(model, {"0": "sliding(5)"})
    model(drawn_ids(1, 8))


def test_attention_weights_are_not_kept():
    model = interop.use(built("llama"), "sliding(5)")
    attention = model.model.layers[0].self_attn
    q = torch.zeros(1, 4, 3, 8)
    attend = function.PatternAttentionFunction(read_patterns("full()"), "x")
    with pytest.raises(Unsupported, match="keeps no weights"):
        attend(attention, q, q, q, None, output_attentions=True)


def test_a_mask_that_is_taken_apart():
    model = interop.use(built("llama"), "sliding(5)")
    seen = []
    model.model.layers[0].register_forward_pre_hook(
        lambda module, given, named: seen.append(named["attention_mask"]), with_kwargs=True
    )
    model(drawn_ids(1, 8))
    with pytest.raises(Unsupported, match="reads 'shape' of its attention mask"):
        seen[0].shape  # noqa: B018
    with pytest.raises(Unsupported, match="of its attention mask"):
        seen[0][:, :, :2]
    assert not hasattr(seen[0], "to")


def test_a_source_mask_of_another_length():
    model = interop.use(built("bart"), "full()")
    given = {
        "encoder_outputs": (torch.zeros(1, 9, 32).double(),),
        "decoder_input_ids": drawn_ids(1, 4),
    }
    with pytest.raises(WeftError, match="the mask of the source"):
        model(**given, attention_mask=torch.ones(1, 5))


# Broken twins: each mistake is seen by comparing with the model's own attention.
def differs(model, **given):
    own = interop.use(model, None)(**given).logits
    return not torch.allclose(own, interop.use(model, "full()")(**given).logits, atol=1e-6)


def test_teeth_a_lost_padding_mask_is_seen(monkeypatch):
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :4] = 0
    given = {"input_ids": drawn_ids(2, 12), "attention_mask": mask}
    model = built("bert")
    whole = interop.use(model, None)(**given).logits[mask.bool()]
    same = interop.use(model, "full()")(**given).logits[mask.bool()]
    torch.testing.assert_close(whole, same, atol=1e-10, rtol=0)
    monkeypatch.setattr(function.MaskPlan, "real", None)
    lost = model(**given).logits[mask.bool()]
    assert not torch.allclose(whole, lost, atol=1e-3)


PACKED = torch.cat((torch.arange(7), torch.arange(5)))[None]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("mistral", {"input_ids": drawn_ids(1, 30)}),
        ("llama", {"input_ids": drawn_ids(1, 12), "position_ids": PACKED, "use_cache": False}),
    ],
)
def test_teeth_a_mask_that_is_guessed_wrong_is_seen(monkeypatch, name, given):
    assert not differs(built(name), **given)
    monkeypatch.setattr(facts, "_fits", lambda *given: True)
    assert differs(built(name), **given)


def test_a_mask_that_no_guess_fits_is_still_kept(monkeypatch):
    monkeypatch.setattr(facts, "_guesses", lambda plan: iter(()))
    with pytest.warns(interop.DenseMaskWarning):
        assert not differs(built("mistral"), input_ids=drawn_ids(1, 30))


def test_teeth_a_cache_that_drops_too_much_is_seen(monkeypatch):
    model = interop.use(built("llama"), "sliding(5)")
    given = {"inputs": drawn_ids(1, 20), "max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**given, use_cache=False)
    assert torch.equal(expected, model.generate(**given))
    keeps = caches.keeps
    monkeypatch.setattr(caches, "keeps", lambda pattern, at, now: keeps(pattern, at, now + 3))
    assert not torch.equal(expected, model.generate(**given))
