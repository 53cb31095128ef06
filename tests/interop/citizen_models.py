"""Small weft models of every kind that is a citizen of Transformers."""

import torch

import weft
from weft.layers.positions import Rope
from weft.models.usage.record import Usage

VOCAB = 256


def stack(order="sfsf", mixer="full", **frame):
    inner = weft.Frame(dim=16, heads=2, length=64, positions=Rope(), **frame)
    return weft.Stack(frame=inner, order=order, mixer=mixer)


def embedding(vocab=VOCAB):
    return weft.Embedding(vocab=vocab)


def decoder(mixer="sliding_window(window=6)"):
    return weft.Decoder(embedding=embedding(), stack=stack(mixer=mixer))


def encoder(mixer="longformer(window=4)"):
    return weft.Encoder(embedding=embedding(), stack=stack(mixer=mixer))


def two_sided():
    sides = {"encoder": encoder("full"), "shares_embedding": True}
    return weft.EncoderDecoder(**sides)


CONFIGS = {
    "ForCausalLM": lambda: weft.LanguageModel(trunk=decoder()),
    "ForMaskedLM": lambda: weft.LanguageModel(trunk=encoder()),
    "ForSeq2SeqLM": lambda: weft.LanguageModel(trunk=two_sided()),
    "ForSequenceClassification": lambda: weft.Classifier(trunk=encoder(), classes=3),
    "Model": encoder,
}


def built(kind, config=None, seed=0):
    """The weft module, its parameters stirred so that every one matters."""
    torch.manual_seed(seed)
    module = (config or CONFIGS[kind]()).build().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if kind == "ForSequenceClassification":
        module.usage = usage("classify", labels=("bad", "good", "mixed"))
    if kind == "ForCausalLM":
        module.usage = usage("language")
    return module


def usage(kind, **settings):
    given = {"task": "reviews", "data": "40 rows", "tokens": "bytes", "length": 64, **settings}
    return Usage(kind=kind, **given)


def drawn_ids(batch, length, seed=1):
    return torch.randint(
        1, VOCAB - 2, (batch, length), generator=torch.Generator().manual_seed(seed)
    )
