"""The registry of whole models: what a saved folder's config.json names."""

from typing import Annotated, Any

from torch import nn

from weft.errors import WeftError
from weft.mixers.base.registry import ModuleRegistry

MODELS = ModuleRegistry("model")
LAST = -1  # of `mask_id`: the last id of the vocabulary
ModelConfig = Annotated[Any, MODELS]  # a config, a table or a spec string


class TrunkModel(nn.Module):
    """A head on a trunk."""

    config: Any  # its config, in MODELS; config.trunk built `trunk`
    trunk: Any  # the module of an Encoder, Decoder, EncoderDecoder, PerceiverIO, SwinTransformer

    @property
    def last_id(self) -> int:
        """The last id of the vocabulary: the first that an objective of weft adds for itself."""
        return self.config.trunk.embedding.vocab - 1

    @property
    def mask(self) -> int:
        """The id of the mask token: the last one, unless the config says another (`mask_id`)."""
        said = getattr(self.config, "mask_id", LAST)
        if said is None:
            raise WeftError(
                "this model came without a mask token, so no token can be hidden from it; read its "
                "checkpoint again with the id, as `weft import hf FOLDER OUT --mask-id 103`"
            )
        return self.last_id if said == LAST else said
