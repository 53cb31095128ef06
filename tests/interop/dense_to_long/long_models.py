"""Small dense models with tokenizers on disk, and texts that they can learn."""

import transformers as hf
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

LETTERS = "abcdefghijklmnopqrstuvwxyz .\n"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SIZES = {
    "vocab_size": len(SPECIAL) + len(LETTERS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.1,
}
ENCODER = {**SIZES, "max_position_embeddings": 32, "hidden_dropout_prob": 0.1}


def bert():
    return hf.BertForMaskedLM(hf.BertConfig(**ENCODER))


def roberta():
    sizes = ENCODER | {"max_position_embeddings": 33}
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**sizes, pad_token_id=0))


def llama():
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            **SIZES, num_key_value_heads=2, max_position_embeddings=32, eos_token_id=None
        )
    )


def tokenizer(wraps=True):
    """A token for each letter; between [CLS] and [SEP] if `wraps`."""
    vocab = {word: at for at, word in enumerate([*SPECIAL, *LETTERS])}
    made = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    if wraps:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        named |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=32, **named)


def saved(make, folder):
    """The folder of a model with its tokenizer."""
    model = make()
    model.save_pretrained(folder)
    tokenizer(wraps=make is not llama).save_pretrained(folder)
    return folder


def text(lines, start=0):
    """Lines that repeat a few words, so that a few steps lower the loss."""
    words = ("red", "green", "blue", "over", "under")
    return "".join(
        f"{words[at % 5]} and {words[at % 3]} again.\n" for at in range(start, start + lines)
    )
