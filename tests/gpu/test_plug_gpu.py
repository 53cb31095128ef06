"""A Transformers model under a pattern on a GPU: our kernels run, and the numbers are right.

Needs transformers. As a script: `python -m pytest -m gpu tests/gpu/test_plug_gpu.py`.
"""

import pytest
import torch

from weft.kernels.planner.context import recording
from weft.patterns import Causal
from weft.patterns import pattern as parse
from weft.patterns.derive import mask as dense_mask

transformers = pytest.importorskip("transformers", reason="the plug-in is for Transformers")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LENGTH = 2048


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).cuda().eval()


def ids(batch=2):
    drawn = torch.Generator().manual_seed(1)
    return torch.randint(3, 256, (batch, LENGTH), generator=drawn).cuda()


@pytest.mark.parametrize("text", ["sliding(128)", "sliding(128) | keys(first=4)", "full()"])
@pytest.mark.parametrize("padded", [0, 300])
def test_logits_and_gradients_are_those_of_the_mask(text, padded):
    import weft.interop.hf as interop

    model, given = llama(), ids()
    seen = dense_mask(Causal() & parse(text), LENGTH, device="cuda")
    real = torch.ones_like(given, dtype=torch.bool)
    real[0, :padded] = False
    if padded and "keys" in text:  # counted from the first real token
        seen = seen.repeat(2, 1, 1)
        seen[0, padded:, padded:] = dense_mask(Causal() & parse(text), LENGTH - padded).cuda()[0]
    pairs = (seen & real[:, None, :])[:, None]
    pairs = pairs | torch.eye(LENGTH, dtype=torch.bool, device="cuda")  # padding reads itself
    model.set_attn_implementation("sdpa")
    exact = model(given, attention_mask=pairs).logits[real]
    exact.square().mean().backward()
    gradient = model.model.embed_tokens.weight.grad.clone()
    half = llama().bfloat16()
    half.set_attn_implementation("sdpa")
    rounding = (half(given, attention_mask=pairs).logits[real].float() - exact).abs().max()

    half = interop.use(llama().bfloat16(), text)
    with recording() as chosen:
        logits = half(given, attention_mask=real.long()).logits[real].float()
    assert (logits - exact).abs().max() <= 2 * rounding + 1e-3
    if text != "full()":
        assert {choice.kernel for choice in chosen} <= {"triton", "flash"}
    logits.square().mean().backward()
    found = half.model.embed_tokens.weight.grad.float()
    assert (found - gradient).norm() <= 0.05 * gradient.norm()


def test_generate_with_the_small_cache():
    import weft.interop.hf as interop

    model = interop.use(llama().bfloat16(), "sliding(128) | keys(first=4)")
    cache = interop.cache(model)
    settings = {"max_new_tokens": 8, "do_sample": False}
    out = model.generate(ids(), past_key_values=cache, **settings)
    assert out.shape == (2, LENGTH + 8)
    assert cache.held_keys() == [127 + 4] * 2
    first = model.generate(ids(), **settings, use_cache=False)[:, LENGTH]
    assert torch.equal(out[:, LENGTH], first)


def test_compiled():
    import weft.interop.hf as interop

    model = interop.use(llama().bfloat16(), "sliding(128)")
    with torch.no_grad():
        expected = model(ids()).logits
        found = torch.compile(model)(ids()).logits
    assert (found - expected).abs().max() <= 0.05 * expected.abs().max()
