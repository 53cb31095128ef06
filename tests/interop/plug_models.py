"""Small Transformers models with random weights, one for each family that plugs in."""

import torch
import transformers as hf

TEXT = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
ENDS = {"bos_token_id": 1, "eos_token_id": 60, "pad_token_id": 0}
SHARED = {**TEXT, **ENDS, "num_key_value_heads": 2}
SLIDING = ["sliding_attention", "full_attention"]

DECODERS = {
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SHARED)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SHARED, sliding_window=9)),
    "qwen2": lambda: hf.Qwen2ForCausalLM(
        hf.Qwen2Config(**SHARED, use_sliding_window=True, sliding_window=7, layer_types=SLIDING)
    ),
    "gemma3": lambda: hf.Gemma3ForCausalLM(
        hf.Gemma3TextConfig(**SHARED, head_dim=8, sliding_window=6, layer_types=SLIDING)
    ),
    "gpt2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=256, **ENDS)
    ),
    "gpt_oss": lambda: hf.GptOssForCausalLM(
        hf.GptOssConfig(
            **SHARED,
            head_dim=8,
            sliding_window=6,
            layer_types=SLIDING,
            num_local_experts=2,
            num_experts_per_tok=1,
        )
    ),
}
ENCODERS = {
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT)),
    "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**TEXT, pad_token_id=0)),
    "modernbert": lambda: hf.ModernBertForMaskedLM(
        hf.ModernBertConfig(
            **TEXT, **ENDS, cls_token_id=1, sep_token_id=2, local_attention=8, layer_types=SLIDING
        )
    ),
}
T5 = {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
BART = {
    **{
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))
    },
    "vocab_size": 61,
    "d_model": 32,
    "max_position_embeddings": 256,
}
TWO_SIDED = {
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            **T5, relative_attention_num_buckets=8, relative_attention_max_distance=20,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=60,
        )
    ),
    "bart": lambda: hf.BartForConditionalGeneration(
        hf.BartConfig(**BART, **ENDS, decoder_start_token_id=2, forced_eos_token_id=None)
    ),
}  # fmt: skip


def built(name, attention="sdpa", seed=0):
    """A model of a family, in float64 where it can, whose weights are large enough to matter."""
    if name == "gpt_oss" and attention == "sdpa":
        attention = "eager"  # its sinks are not in torch's kernel
    torch.manual_seed(seed)
    model = {**DECODERS, **ENCODERS, **TWO_SIDED}[name]().eval()
    model = model.float() if name == "gpt_oss" else model.double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.set_attn_implementation(attention)
    return model


def drawn_ids(batch, length, seed=1):
    """Ids that are neither padding nor the end."""
    return torch.randint(3, 60, (batch, length), generator=torch.Generator().manual_seed(seed))


def vit():
    """A picture classifier of 17 tokens."""
    torch.manual_seed(0)
    sizes = {
        name: size
        for name, size in TEXT.items()
        if name not in ("vocab_size", "max_position_embeddings")
    }
    config = hf.ViTConfig(**sizes, image_size=16, patch_size=4)
    model = hf.ViTForImageClassification(config).double().eval()
    model.set_attn_implementation("sdpa")
    return model
