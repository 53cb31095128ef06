"""A Transformers model under a pattern: less to compute, and a cache that stays small.

The model has random weights; put a name of your own into `from_pretrained` instead.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import weft
import weft.interop.hf

torch.manual_seed(0)
LENGTH, NEW = 512, 16
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
    )
).eval()
prompt = torch.randint(3, 256, (1, LENGTH))

# Every layer has a window and the first four tokens; the last reads everything.
weft.interop.hf.use(model, {"*": "sliding(64) | keys(first=4)", "3": "full()"})
cache = weft.interop.hf.cache(model)
written = model.generate(prompt, max_new_tokens=NEW, do_sample=False, past_key_values=cache)
held = cache.held_keys()
print(f"{cache.get_seq_length()} tokens read; keys held by each layer: {held}")

facts = weft.plan(weft.Causal() & weft.Sliding(64), (1, 4, 16_384, 16))
print(f"the window alone, at 16,384 tokens: {facts[0].kernel}, {facts[0].reason}")
