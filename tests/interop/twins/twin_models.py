"""Small models of the families that have twins, and what they read."""

import torch
import transformers as T

_BERT = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
         "intermediate_size": 24, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}  # fmt: skip


def longformer():
    return T.LongformerForMaskedLM(T.LongformerConfig(**_BERT, attention_window=[4, 8]))


def led():
    sizes = {"vocab_size": 50, "attention_window": [4, 8], "d_model": 16, "encoder_layers": 2,
             "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
             "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_encoder_position_embeddings": 64,
             "max_decoder_position_embeddings": 64, "dropout": 0.0}  # fmt: skip
    return T.LEDForConditionalGeneration(T.LEDConfig(**sizes))


def bigbird():
    return T.BigBirdForMaskedLM(T.BigBirdConfig(**_BERT, block_size=2, num_random_blocks=2))


CASES = {
    "longformer": longformer,
    "longformer_global": longformer,
    "longformer_marks": longformer,
    "led": led,
    "led_global": led,
    "bigbird": bigbird,
}


def inputs(case, model):
    """Tokens of two rows, one of them padded; `real` says where."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 50, (2, 27), generator=draw)
    mask = torch.ones(2, 27, dtype=torch.long)
    mask[1, 19:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "real": mask > 0}
    if case.endswith(("_global", "_marks")):
        marked = torch.zeros_like(mask)
        marked[:, 0] = 1
        if case.endswith("_marks"):
            marked[0, 3] = 1
        given["global_attention_mask"] = marked
    return given
