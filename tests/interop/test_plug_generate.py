"""Generation under a pattern: the tokens of the dense model, and a cache as small as promised."""

import copy

import pytest
import torch
from plug_models import DECODERS, TWO_SIDED, built, drawn_ids
from transformers import DynamicCache

import weft.interop.hf as interop
from weft.interop.hf.plug.cache import PatternCache
from weft.patterns import Causal
from weft.patterns import pattern as parse

NEW = {"max_new_tokens": 12, "min_new_tokens": 12}
PROMPT = 20


def padded(batch, length, first=7):
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, :first] = 0
    return mask


def prompt(name):
    """Two prompts, the first shorter and padded on the left."""
    ids = drawn_ids(2, PROMPT)
    return {"inputs": ids, "attention_mask": padded(2, PROMPT)}


WAYS = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "top_k": 20},
}


def written(model, way, given, **further):
    torch.manual_seed(5)
    return model.generate(**given, **NEW, **WAYS[way], **further)


def chosen(first, others):
    """The first in every test run, the others in the long one."""
    return [first, *(pytest.param(*each, marks=pytest.mark.long) for each in others)]


@pytest.mark.parametrize(
    ("name", "way"),
    chosen(
        ("llama", "greedy"),
        [(name, way) for name in [*DECODERS, *TWO_SIDED] for way in WAYS][1:],
    ),
)
def test_full_writes_what_the_model_writes(name, way):
    model = built(name)
    own = written(model, way, prompt(name))
    interop.use(model, "full()")
    assert torch.equal(own, written(model, way, prompt(name)))


TEXTS = ["sliding(5)", "sliding(4) | keys(first=2)", "strided(4) | sliding(2)", "keys(at=[3, 11])"]


@pytest.mark.parametrize(
    ("name", "text", "way"),
    chosen(
        ("t5", TEXTS[1], "beams"),
        [
            (name, text, way)
            for name in ("llama", "gemma3", "t5", "bart")
            for text in TEXTS
            for way in WAYS
        ],
    ),
)
def test_the_cache_changes_nothing(name, text, way):
    model = interop.use(built(name), text)
    whole = written(model, way, prompt(name), use_cache=False)
    for cache in (None, DynamicCache(config=model.config), "static"):
        if name in TWO_SIDED and cache is not None:
            continue
        given = (
            {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
        )
        if isinstance(cache, DynamicCache):
            given = {"past_key_values": cache}
        assert torch.equal(whole, written(model, way, prompt(name), **given)), cache


def most_held(text, total, window=None):
    """Keys that a query at `total` or later reads, counted one by one."""
    pattern = Causal() & parse(text)
    if window:
        pattern = pattern & parse(f"sliding({window})")
    return sum(any(pattern.sees(i, j) for i in range(total, 3 * total)) for j in range(total))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sliding(5)", 4),  # the next token is the fifth
        ("sliding(4) | keys(first=2)", 3 + 2),
        ("sliding(1)", 0),
        ("keys(at=[3, 11])", 2),
        ("sliding(4) | keys(at=[2, 6, 17])", 3 + 3),
        ("full()", 32 - 1),
    ],
)
def test_the_cache_keeps_what_the_pattern_reads(text, expected):
    model = interop.use(built("llama"), text)
    cache = interop.cache(model)
    model.generate(drawn_ids(2, PROMPT), past_key_values=cache, do_sample=False, **NEW)
    assert cache.get_seq_length() == PROMPT + 11  # the last token is never read
    assert cache.held_keys() == [expected] * 2 == [most_held(text, PROMPT + 11)] * 2


def test_a_stride_keeps_gaps():
    """A dilated window of four at every third token: nine tokens back, the gaps still needed."""
    model = interop.use(built("llama"), "dilated(window=4, dilation=3)")
    cache = interop.cache(model)
    model.generate(drawn_ids(1, PROMPT), past_key_values=cache, do_sample=False, **NEW)
    assert cache.held_keys() == [most_held("dilated(4, 3)", PROMPT + 11)] * 2


def test_each_layer_keeps_its_own():
    model = interop.use(built("gemma3"), {"0": "full()", "1": "sliding(3)"})
    cache = interop.cache(model)
    model.generate(drawn_ids(1, PROMPT), past_key_values=cache, do_sample=False, **NEW)
    assert cache.held_keys() == [5, 2]  # the model's own window of 6 in the first


def test_padding_is_not_counted():
    """With padding on the left each row keeps its own first tokens."""
    model = interop.use(built("llama"), "sliding(4) | keys(first=2)")
    cache = interop.cache(model)
    model.generate(**prompt("llama"), past_key_values=cache, do_sample=False, **NEW)
    assert cache.held_keys() == [5, 5]
    held = cache.layers[0].kept.held
    assert held.tolist() == [[7, 8, 28, 29, 30], [0, 1, 28, 29, 30]]


def test_generate_takes_our_cache_by_itself(monkeypatch):
    made = []
    update = PatternCache.__init__
    monkeypatch.setattr(
        PatternCache, "__init__", lambda self, *given: made.append(self) or update(self, *given)
    )
    model = interop.use(built("llama"), "sliding(5)")
    out = model.generate(drawn_ids(1, PROMPT), do_sample=False, return_dict_in_generate=True, **NEW)
    assert made == [out.past_key_values]
    assert out.past_key_values.held_keys() == [4, 4]
    model = interop.use(model, None)
    model.generate(drawn_ids(1, PROMPT), do_sample=False, **NEW)
    assert len(made) == 1


@pytest.mark.parametrize("text", ["sliding(5)", "sliding(4) | keys(first=2)", "full()"])
def test_a_prompt_in_pieces(text):
    """Any split of a text into calls gives the logits of the whole."""
    model, ids = interop.use(built("llama"), text), drawn_ids(2, 64)
    whole = model(ids).logits
    for sizes in ([20, 1, 1, 42], [40, 24]):
        for cache in (interop.cache(model), DynamicCache(config=model.config)):
            parts = [
                model(part, past_key_values=cache, use_cache=True).logits
                for part in ids.split(sizes, dim=1)
            ]
            torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)


def test_an_assistant_takes_tokens_back():
    model, other = interop.use(built("llama"), "sliding(5)"), built("llama", seed=3)
    given = {"inputs": drawn_ids(1, PROMPT), "do_sample": False, **NEW}
    expected = model.generate(**given)
    assert torch.equal(model.generate(**given, assistant_model=other), expected)


def test_a_copy_is_a_model_of_its_own():
    model = interop.use(built("llama"), "sliding(5)")
    twin = copy.deepcopy(model)
    interop.use(model, None)
    given = {"inputs": drawn_ids(1, PROMPT), "do_sample": False, **NEW}
    assert not torch.equal(model.generate(**given), twin.generate(**given))
    assert torch.equal(interop.use(twin, None).generate(**given), model.generate(**given))


def test_saved_under_a_pattern_a_model_is_itself(tmp_path):
    model = interop.use(built("llama"), "sliding(5)")
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert again.config._attn_implementation == "sdpa"


@pytest.mark.long
def test_compiled():
    model, ids = interop.use(built("llama"), "sliding(5)"), drawn_ids(1, 20)
    expected = model(ids).logits
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, expected, atol=1e-10, rtol=0)
