"""`accelerate`: a Transformers model whose attention is computed by weft, its weights untouched.

    accelerate(model)               Longformer, and the encoder of LED
    accelerate(model, undo=True)    as it was

Each attention module keeps its parameters, their names and its place; its `forward` is replaced by
weft's mechanism over the same matrices. Outputs and gradients are those of Transformers to
rounding. Padding stands at the ends of a row; attention maps are not returned.

Others are refused: BigBird and BigBirdPegasus read random blocks of their own draw, which counts
keys twice; Reformer, Nyströmformer, FNet, Funnel, Swin, ImageGPT and SwitchTransformers have no
twin yet.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.errors import Unsupported
from weft.mixers import Frame, Longformer

_TWINS = ("LongformerSelfAttention", "LEDEncoderSelfAttention")


def accelerate(model: nn.Module, *, undo: bool = False) -> nn.Module:
    """Replace the attention of a Transformers model by weft's, or put its own back."""
    found: list[Any] = [part for part in model.modules() if type(part).__name__ in _TWINS]
    if not found:
        raise Unsupported(
            f"weft has no twin for the attention of {type(model).__name__}; it has for the modules "
            f"{', '.join(_TWINS)}. weft.interop.hf.use(model, pattern) sets patterns instead"
        )
    for part in found:
        vars(part).pop("forward", None)
        if not undo:
            # Not registered in the module: its parameters keep their names.
            vars(part)["forward"] = WindowTwin(part)
    return model


class WindowTwin:
    """The forward of Longformer's attention, by weft, over the matrices of one module."""

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        config = Longformer(window=theirs.one_sided_attn_window_size + 1, global_first=0)
        frame = Frame(dim=theirs.embed_dim, heads=theirs.num_heads, dropout=theirs.dropout)
        self.mixer = config.build(frame)
        project: Any = self.mixer.project
        project.to_q, project.to_k, project.to_v = theirs.query, theirs.key, theirs.value
        project.to_out = nn.Identity()  # theirs follows outside
        self.mixer.to_q_global = theirs.query_global
        self.mixer.to_k_global = theirs.key_global
        self.mixer.to_v_global = theirs.value_global

    def __call__(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        is_index_masked: Tensor | None = None,
        is_index_global_attn: Tensor | None = None,
        is_global_attn: bool | None = None,
        output_attentions: bool = False,
        **_: Any,
    ) -> tuple[Tensor, ...]:
        """(b, n, c) -> (b, n, c), in a tuple, as Transformers' modules return it."""
        if output_attentions:
            raise Unsupported(
                "weft computes no attention maps; use accelerate(model, undo=True) to see them"
            )
        self.mixer.train(self.theirs.training)
        valid = None
        if is_index_masked is not None and bool(is_index_masked.any()):
            valid = ~is_index_masked
        marks = {"is_global": is_index_global_attn} if is_global_attn else {}
        return (self.mixer(hidden_states, valid=valid, **marks),)
