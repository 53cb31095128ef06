"""Tiny models of every architecture that is read, with random weights."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers as T

VOCAB = 50
VERSION = tuple(int(each) for each in T.__version__.split(".")[:2])
BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
DEEP = {**BERT, "num_hidden_layers": 4}
SPECIAL = {f"{name}_token_id": i for i, name in enumerate(("pad", "bos", "eos", "cls", "sep"))}
MODERNBERT = {**DEEP, **SPECIAL, "local_attention": 8}
# Seven blocks and fewer are read in full.
BIGBIRD = {**BERT, **SPECIAL, "block_size": 2, "num_random_blocks": 1}
LLAMA = {**BERT, "num_key_value_heads": 1}
BART = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 32,
}
LED = {
    **{k: v for k, v in BART.items() if "max" not in k},
    "attention_window": [4, 6],
    "max_encoder_position_embeddings": 36,
    "max_decoder_position_embeddings": 30,
}
PEGASUS_BLOCKS = {**BART, "block_size": 2, "num_random_blocks": 1}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
SWITCH = {
    **T5,
    "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 3,
    "num_experts": 3,
    # Some tokens find no room; earlier versions count those of all rows together.
    "expert_capacity": 4 if VERSION >= (5, 22) else 64,
}
NYSTROM = {**BERT, "num_landmarks": 4, "segment_means_seq_len": 20, "conv_kernel_size": 5}
SWIN = {
    "image_size": 24,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 5,  # stages of 12 and 6 tokens on a side: the edges are padded
    "drop_path_rate": 0.0,
}
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
IMAGEGPT = {**GPT2, "n_head": 4}  # Transformers 5.17 rounds √width of a head
XLNET = {"vocab_size": VOCAB, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24}
VIT = {
    **{k: v for k, v in BERT.items() if "max" not in k and "vocab" not in k},
    "image_size": 8,
    "patch_size": 4,
}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@dataclass
class Tiny:
    """A class of Transformers, its settings, and how closely weft agrees in float64."""

    kind: str
    settings: dict[str, Any]
    tolerance: float = 1e-10  # larger where Transformers computes a part in float32
    padded: bool = True
    missing: int = 6  # tokens of the second row
    texts: int = 2
    dtype: torch.dtype = torch.float64

    @property
    def config_class(self) -> Any:
        return getattr(T, self.kind).config_class

    def build(self, dtype: torch.dtype | None = None) -> Any:
        """The model, with biases, gains and tables that are not at their starting values."""
        torch.manual_seed(0)
        model = getattr(T, self.kind)(self.config_class(**self.settings))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model.to(dtype or self.dtype).eval()


FLOAT32_NORMS = 1e-6
TINY = {
    "BERT": Tiny("BertForMaskedLM", BERT),
    "BERT, body": Tiny("BertModel", BERT),
    "BERT, classes": Tiny("BertForSequenceClassification", {**BERT, "num_labels": 3}),
    "BERT, untied": Tiny("BertForMaskedLM", {**BERT, "tie_word_embeddings": False}),
    "RoBERTa": Tiny("RobertaForMaskedLM", BERT),
    "RoBERTa, classes": Tiny("RobertaForSequenceClassification", {**BERT, "num_labels": 3}),
    "XLM-RoBERTa": Tiny("XLMRobertaForMaskedLM", BERT),
    "GPT-2": Tiny("GPT2LMHeadModel", GPT2),
    "GPT-2, body": Tiny("GPT2Model", GPT2),
    "Llama": Tiny("LlamaForCausalLM", LLAMA, FLOAT32_NORMS),
    "Llama, body": Tiny("LlamaModel", LLAMA, FLOAT32_NORMS),
    "Llama 3": Tiny(
        "LlamaForCausalLM",
        {
            **LLAMA,
            "rope_parameters": LLAMA3,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
        FLOAT32_NORMS,
    ),
    "Mistral": Tiny("MistralForCausalLM", {**LLAMA, "sliding_window": 5}, FLOAT32_NORMS),
    "Qwen2": Tiny("Qwen2ForCausalLM", LLAMA, FLOAT32_NORMS),
    "Gemma": Tiny("GemmaForCausalLM", {**LLAMA, "head_dim": 6}, FLOAT32_NORMS),
    "Gemma 3": Tiny(
        "Gemma3ForCausalLM",
        {
            **LLAMA,
            "num_hidden_layers": 4,
            "head_dim": 6,
            "sliding_window": 5,
            "layer_types": SLIDING,
            "query_pre_attn_scalar": 5,
            "final_logit_softcapping": 3.0,
        },
        1e-5,
    ),
    "T5": Tiny("T5ForConditionalGeneration", T5, 1e-5),
    "T5, body": Tiny("T5Model", T5, 1e-5),
    "T5 1.1": Tiny(
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        1e-4,
    ),
    "ELECTRA": Tiny("ElectraForMaskedLM", {**BERT, "embedding_size": 8}),
    "ELECTRA, base": Tiny("ElectraForMaskedLM", {**BERT, "embedding_size": 16}),
    "ELECTRA, classes": Tiny("ElectraForSequenceClassification", {**BERT, "embedding_size": 8}),
    "ALBERT": Tiny("AlbertForMaskedLM", {**DEEP, "embedding_size": 8, "num_hidden_groups": 2}),
    "ALBERT, classes": Tiny("AlbertForSequenceClassification", {**BERT, "embedding_size": 8}),
    "MPNet": Tiny("MPNetForMaskedLM", BERT),
    "MPNet, classes": Tiny("MPNetForSequenceClassification", BERT),
    "BART": Tiny("BartForConditionalGeneration", BART),
    "BART, body": Tiny("BartModel", {**BART, "scale_embedding": True}),
    "mBART": Tiny("MBartForConditionalGeneration", BART),
    "ModernBERT": Tiny("ModernBertForMaskedLM", MODERNBERT, FLOAT32_NORMS),
    "ModernBERT, biases": Tiny(
        "ModernBertForMaskedLM",
        {
            **MODERNBERT,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "tie_word_embeddings": False,
        },
        FLOAT32_NORMS,
    ),
    "ModernBERT, classes": Tiny(
        "ModernBertForSequenceClassification",
        {**MODERNBERT, "num_labels": 3, "classifier_pooling": "mean"},
        FLOAT32_NORMS,
    ),
    "BigBird": Tiny("BigBirdForMaskedLM", BIGBIRD, missing=1),
    "BigBird, short": Tiny("BigBirdForMaskedLM", {**BIGBIRD, "block_size": 3}),
    "BigBird, full": Tiny(
        "BigBirdForMaskedLM", {**BIGBIRD, "attention_type": "original_full", "use_bias": False}
    ),
    "BigBird, classes": Tiny(
        "BigBirdForSequenceClassification",
        {**BIGBIRD, "num_labels": 3, "rescale_embeddings": True},
        missing=1,
    ),
    "ViT": Tiny("ViTForImageClassification", VIT),
    "ViT, body": Tiny("ViTModel", VIT),
    "XLNet": Tiny("XLNetLMHeadModel", XLNET, 1e-7),
    # In float64 its gradients at Transformers are not finite.
    "Longformer": Tiny(
        "LongformerForMaskedLM", {**BERT, "attention_window": [4, 6]}, 2e-6, dtype=torch.float32
    ),
    "Longformer, classes": Tiny(
        "LongformerForSequenceClassification",
        {**BERT, "attention_window": [4, 6]},
        2e-6,
        dtype=torch.float32,
    ),
    "LED": Tiny("LEDForConditionalGeneration", LED, 2e-6, dtype=torch.float32),
    "LED, body": Tiny("LEDModel", LED, 2e-6, dtype=torch.float32),
    "BigBirdPegasus": Tiny("BigBirdPegasusForConditionalGeneration", PEGASUS_BLOCKS, missing=1),
    "BigBirdPegasus, body": Tiny(
        "BigBirdPegasusModel",
        {**PEGASUS_BLOCKS, "use_bias": True, "attention_type": "original_full"},
    ),
    "Nystromformer": Tiny(
        "NystromformerForMaskedLM",
        {**NYSTROM, "num_landmarks": 20, "layer_norm_eps": 1e-12},
        padded=False,
    ),
    "Nystromformer, landmarks": Tiny(
        "NystromformerForMaskedLM", NYSTROM, FLOAT32_NORMS, padded=False, texts=1
    ),
    "Nystromformer, classes": Tiny(
        "NystromformerForSequenceClassification",
        {**NYSTROM, "num_labels": 3, "num_landmarks": 20},
        padded=False,
    ),
    "ImageGPT": Tiny("ImageGPTForCausalImageModeling", {**IMAGEGPT, "layer_norm_epsilon": 1e-5}),
    "ImageGPT, body": Tiny("ImageGPTModel", IMAGEGPT),
    "SwitchTransformers": Tiny("SwitchTransformersForConditionalGeneration", SWITCH, 1e-5),
    "SwitchTransformers, body": Tiny(
        "SwitchTransformersModel", {**SWITCH, "num_sparse_encoder_layers": 0}, 1e-5
    ),
    "LongT5": Tiny("LongT5ForConditionalGeneration", {**T5, "local_radius": 3}, 1e-5),
    "LongT5, body": Tiny(
        "LongT5Model",
        {**T5, "local_radius": 4, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        1e-5,
    ),
    "Swin": Tiny("SwinForImageClassification", SWIN, FLOAT32_NORMS),
    "Swin, body": Tiny("SwinModel", {**SWIN, "image_size": 23, "window_size": 3}, FLOAT32_NORMS),
    "FNet": Tiny(
        "FNetForMaskedLM",
        {k: v for k, v in BERT.items() if k != "num_attention_heads"},
        padded=False,
    ),
}
