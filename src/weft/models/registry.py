"""The registry of whole models: what a saved folder's config.json names."""

from typing import Annotated, Any

from torch import nn

from weft.mixers.base.registry import ModuleRegistry

MODELS = ModuleRegistry("model")
ModelConfig = Annotated[Any, MODELS]  # a config, a table or a spec string


class TrunkModel(nn.Module):
    """A head on a trunk."""

    config: Any  # its config, in MODELS; config.trunk built `trunk`
    trunk: Any  # the module of an Encoder, Decoder, EncoderDecoder, PerceiverIO, SwinTransformer

    @property
    def mask(self) -> int:
        """The last id: the mask token, where the objective has one."""
        return self.config.trunk.embedding.vocab - 1
