"""Layers of other libraries with the same widths, timed in turns with weft's.

A config holds the rival's settings; the module projects, attends and projects back, as weft's
layers do. The library is imported when one is built. Masks that a model computes once for all its
layers are computed outside the timed call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.bench.optional import optional
from weft.bench.setting import Setting
from weft.errors import Unsupported, WeftError
from weft.mixers import Frame, LinearTransformer, Longformer
from weft.registry import Registry

RIVALS = Registry("rival")


@RIVALS.register("transformers_longformer")
@dataclass(frozen=True, kw_only=True)
class TransformersLongformer:
    """`LongformerSelfAttention` of the Transformers library."""

    window: int = 512  # both sides together; weft's window is window / 2 + 1
    global_tokens: int = 128  # the first ones

    def build(self, setting: Setting, n: int) -> nn.Module:
        _refuse_causal(self, setting)
        return LongformerLayer(self, setting)


class LongformerLayer(nn.Module):
    """Window and global attention of the Transformers library, and an output projection."""

    exact = True

    def __init__(self, config: TransformersLongformer, setting: Setting) -> None:
        super().__init__()
        library = _library("longformer.modeling_longformer")
        made = _library("longformer.configuration_longformer").LongformerConfig(
            hidden_size=setting.dim,
            num_attention_heads=setting.heads,
            attention_window=[config.window],
            num_hidden_layers=1,
            attention_probs_dropout_prob=0.0,
        )
        self.config, self.heads = config, setting.heads
        self.attend = library.LongformerSelfAttention(made, layer_id=0)
        self.to_out = nn.Linear(setting.dim, setting.dim)

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c); n is a multiple of the window."""
        b, n, _ = x.shape
        mark = torch.zeros(b, n, device=x.device, dtype=x.dtype)  # (b, n)
        mark[:, : self.config.global_tokens] = 10_000.0
        found = self.attend(
            x,
            attention_mask=mark,
            is_index_masked=mark < 0,
            is_index_global_attn=mark > 0,
            is_global_attn=self.config.global_tokens > 0,
        )
        return self.to_out(found[0])

    def reference(self, x: Tensor) -> Tensor:
        """weft's reference Longformer with the same weights."""
        window, first = self.config.window // 2 + 1, self.config.global_tokens
        frame = Frame(dim=x.shape[-1], heads=self.heads)
        mixer = Longformer(window=window, global_first=first).build(frame).to(x)
        ours = {
            "project.to_q": self.attend.query,
            "project.to_k": self.attend.key,
            "project.to_v": self.attend.value,
            "project.to_out": self.to_out,
            "to_q_global": self.attend.query_global,
            "to_k_global": self.attend.key_global,
            "to_v_global": self.attend.value_global,
        }
        for name, linear in ours.items():
            mixer.get_submodule(name).load_state_dict(linear.state_dict())
        return mixer.reference(x)


@RIVALS.register("transformers_bigbird")
@dataclass(frozen=True, kw_only=True)
class TransformersBigBird:
    """`BigBirdBlockSparseAttention` of the Transformers library."""

    block: int = 64
    random: int = 3

    def build(self, setting: Setting, n: int) -> nn.Module:
        _refuse_causal(self, setting)
        least = (5 + 2 * self.random) * self.block
        if n <= least or n % self.block:
            raise WeftError(
                f"the library's BigBird is sparse above {least} tokens, in multiples of "
                f"{self.block}; got {n}"
            )
        return BigBirdLayer(self, setting, n)


class BigBirdLayer(nn.Module):
    """Block-sparse attention of the Transformers library, and an output projection."""

    def __init__(self, config: TransformersBigBird, setting: Setting, n: int) -> None:
        super().__init__()
        library = _library("big_bird.modeling_big_bird")
        made = _library("big_bird.configuration_big_bird").BigBirdConfig(
            hidden_size=setting.dim,
            num_attention_heads=setting.heads,
            block_size=config.block,
            num_random_blocks=config.random,
            max_position_embeddings=n,
            attention_probs_dropout_prob=0.0,
        )
        self.attend = library.BigBirdBlockSparseAttention(made, seed=setting.seed)
        self.to_out = nn.Linear(setting.dim, setting.dim)
        real = torch.ones(setting.batch, n)
        masks = library.BigBirdModel.create_masks_for_block_sparse_attn(real, config.block)
        for name, made_mask in zip(("blocked", "band", "rows", "cols"), masks, strict=True):
            self.register_buffer(name, made_mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        found = self.attend(
            x,
            band_mask=self.band,
            from_mask=self.rows,
            to_mask=self.cols,
            from_blocked_mask=self.blocked,
            to_blocked_mask=self.blocked,
        )
        return self.to_out(found[0])


@RIVALS.register("transformers_reformer")
@dataclass(frozen=True, kw_only=True)
class TransformersReformer:
    """`LSHSelfAttention` of the Transformers library."""

    chunk: int = 64
    rounds: int = 4

    def build(self, setting: Setting, n: int) -> nn.Module:
        if n % self.chunk:
            raise WeftError(f"the library's Reformer takes multiples of {self.chunk}; got {n}")
        return ReformerLayer(self, setting, n)


class ReformerLayer(nn.Module):
    """LSH attention of the Transformers library, and an output projection."""

    def __init__(self, config: TransformersReformer, setting: Setting, n: int) -> None:
        super().__init__()
        library = _library("reformer.modeling_reformer")
        made = _library("reformer.configuration_reformer").ReformerConfig(
            hidden_size=setting.dim,
            num_attention_heads=setting.heads,
            attention_head_size=setting.head_dim,
            attn_layers=["lsh"],
            lsh_attn_chunk_length=config.chunk,
            num_hashes=config.rounds,
            is_decoder=setting.causal,
            max_position_embeddings=n,
            lsh_attention_probs_dropout_prob=0.0,
            hash_seed=setting.seed,
        )
        self.attend = library.LSHSelfAttention(made)
        self.to_out = nn.Linear(setting.dim, setting.dim)

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c)."""
        return self.to_out(self.attend(x).hidden_states)


@RIVALS.register("compiled_linear_attention")
@dataclass(frozen=True, kw_only=True)
class CompiledLinearAttention:
    """Causal linear attention as commonly written: einsum over chunks, compiled by torch."""

    chunk: int = 128

    def build(self, setting: Setting, n: int) -> nn.Module:
        if not setting.causal:
            raise Unsupported("the chunked einsum is the causal form; measure it with --causal")
        if n % self.chunk:
            raise WeftError(f"this rival takes multiples of {self.chunk}; got {n}")
        return CompiledLinearLayer(self, setting)


class CompiledLinearLayer(nn.Module):
    """Projections, elu + 1 features and sums over chunks, in one compiled graph."""

    def __init__(self, config: CompiledLinearAttention, setting: Setting) -> None:
        super().__init__()
        self.config, self.heads = config, setting.heads
        self.to_qkv = nn.Linear(setting.dim, 3 * setting.dim)
        self.to_out = nn.Linear(setting.dim, setting.dim)
        self.compiled = torch.compile(self.attend, fullgraph=True, dynamic=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, n, c) -> (b, n, c); n is a multiple of the chunk."""
        return self.compiled(x)

    def attend(self, x: Tensor) -> Tensor:
        """The same, not compiled."""
        b, n, c = x.shape
        shape = (b, n // self.config.chunk, self.config.chunk, self.heads, -1)
        q, k, v = (part.reshape(shape) for part in self.to_qkv(x).chunk(3, -1))  # (b, u, w, h, d)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        parts = torch.einsum("buwhf,buwhe->buhfe", k, v).float()  # (b, u, h, d, d)
        before = (parts.cumsum(1) - parts).to(x.dtype)
        sums = k.sum(2, dtype=torch.float32)  # (b, u, h, d)
        earlier = sums.cumsum(1) - sums
        scores = torch.einsum("buwhf,bushf->buhws", q, k).tril()
        top = torch.einsum("buhws,bushe->buwhe", scores, v)
        top = top + torch.einsum("buwhf,buhfe->buwhe", q, before)
        bottom = scores.sum(-1, dtype=torch.float32).transpose(2, 3)  # (b, u, w, h)
        bottom = bottom + torch.einsum("buwhf,buhf->buwh", q.float(), earlier)
        out = (top / (bottom[..., None] + 1e-6)).to(x.dtype)
        return self.to_out(out.reshape(b, n, c))

    def reference(self, x: Tensor) -> Tensor:
        """weft's reference linear attention with the same weights."""
        frame = Frame(dim=x.shape[-1], heads=self.heads, causal=True)
        mixer = LinearTransformer().build(frame).to(x)
        for name, weight, bias in zip(
            "qkv", self.to_qkv.weight.chunk(3), self.to_qkv.bias.chunk(3), strict=True
        ):
            linear = mixer.get_submodule(f"project.to_{name}")
            linear.load_state_dict({"weight": weight, "bias": bias})
        mixer.project.to_out.load_state_dict(self.to_out.state_dict())
        return mixer.reference(x)


def _library(module: str) -> Any:
    return optional(f"transformers.models.{module}", "transformers")


def _refuse_causal(config: Any, setting: Setting) -> None:
    if setting.causal:
        raise Unsupported(f"{config.name} cannot be causal: the library does not have it")
