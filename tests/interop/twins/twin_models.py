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


def bigbird_pegasus():
    sizes = {"vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
             "decoder_ffn_dim": 24, "max_position_embeddings": 64, "dropout": 0.0,
             "attention_dropout": 0.0, "block_size": 2, "num_random_blocks": 2}  # fmt: skip
    return T.BigBirdPegasusForConditionalGeneration(T.BigBirdPegasusConfig(**sizes))


def nystromformer():
    more = {"num_landmarks": 3, "segment_means_seq_len": 27, "conv_kernel_size": 5}
    return T.NystromformerForMaskedLM(T.NystromformerConfig(**_BERT, **more))


def fnet():
    sizes = {k: v for k, v in _BERT.items() if "attention" not in k}
    return T.FNetForMaskedLM(T.FNetConfig(**sizes))


def imagegpt():
    # Heads of 4: Transformers 5.17 rounds the root of their width.
    sizes = {"vocab_size": 50, "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 64,
             "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}  # fmt: skip
    return T.ImageGPTForCausalImageModeling(T.ImageGPTConfig(**sizes))


def swin():
    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2],
             "num_heads": [2, 2], "window_size": 4, "drop_path_rate": 0.0}  # fmt: skip
    return T.SwinForImageClassification(T.SwinConfig(**sizes))


def switch_transformers():
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2,
             "num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1,
             "num_sparse_decoder_layers": 1, "num_experts": 3, "expert_capacity": 8,
             "dropout_rate": 0.0, "router_jitter_noise": 0.0}  # fmt: skip
    return T.SwitchTransformersForConditionalGeneration(T.SwitchTransformersConfig(**sizes))


def funnel(**more):
    sizes = {"vocab_size": 50, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 16,
             "n_head": 2, "d_head": 8, "d_inner": 24, "hidden_dropout": 0.0,
             "attention_dropout": 0.0, "activation_dropout": 0.0}  # fmt: skip
    return T.FunnelForMaskedLM(T.FunnelConfig(**(sizes | more)))


def funnel_factorized():
    return funnel(attention_type="factorized", pool_q_only=False)


def reformer(decoder=True):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2,
             "attention_head_size": 8, "feed_forward_size": 24, "attn_layers": ["local", "lsh"],
             "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_hashes": 2,
             "num_buckets": 4, "axial_pos_embds": False, "max_position_embeddings": 64,
             "hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0,
             "is_decoder": decoder, "hash_seed": 7}  # fmt: skip
    config = T.ReformerConfig(**sizes)
    return (T.ReformerModelWithLMHead if decoder else T.ReformerForMaskedLM)(config)


def reformer_encoder():
    return reformer(decoder=False)


CASES = {
    "funnel": funnel,
    "funnel_factorized": funnel_factorized,
    "reformer": reformer,
    "reformer_encoder": reformer_encoder,
    "bigbird_pegasus": bigbird_pegasus,
    "nystromformer": nystromformer,
    "fnet": fnet,
    "imagegpt": imagegpt,
    "swin": swin,
    "switch_transformers": switch_transformers,
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
    if case == "swin":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=draw), "real": None}
    ids = torch.randint(5, 50, (2, 27), generator=draw)
    mask = torch.ones(2, 27, dtype=torch.long)
    mask[1, 19:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "real": mask > 0}
    if case in ("fnet", "nystromformer"):  # the one takes no mask, the other fails with padding
        del given["attention_mask"]
    if case.startswith("reformer"):  # in training it pads nothing
        ids, mask = ids[:, :24], mask[:, :24]
        given = {"input_ids": ids, "attention_mask": mask, "real": mask > 0}
    if case == "switch_transformers":
        given["decoder_input_ids"] = ids[:, :6]
    if case.endswith(("_global", "_marks")):
        marked = torch.zeros_like(mask)
        marked[:, 0] = 1
        if case.endswith("_marks"):
            marked[0, 3] = 1
        given["global_attention_mask"] = marked
    return given
