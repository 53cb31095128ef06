"""A .gguf file, written here as llama.cpp does: what is read is the model that was written."""

import pytest
import torch
import transformers as hf

import weft
from weft.errors import WeftError
from weft.interop.hf import Conversion, convert, load

gguf = pytest.importorskip("gguf", reason="gguf is not installed: make .venv/weights")

LAYERS, HEADS, SHARED = 2, 4, 2
WORDS = ["<unk>", "<s>", "</s>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", "ab", "Ġa"]
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
pytestmark = pytest.mark.filterwarnings("ignore")  # of numpy, in Transformers' reader


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=SHARED, max_position_embeddings=64,
        rope_theta=5000.0, initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).eval()


def interleaved(weight, heads):
    """Rows of halves as llama.cpp rotates them: pairs that are neighbours."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write(model, path):
    made = gguf.GGUFWriter(path, "llama")
    made.add_context_length(64)
    made.add_embedding_length(32)
    made.add_block_count(LAYERS)
    made.add_feed_forward_length(64)
    made.add_head_count(HEADS)
    made.add_head_count_kv(SHARED)
    made.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    made.add_rope_freq_base(5000.0)
    made.add_vocab_size(len(WORDS))
    made.add_tokenizer_model("gpt2")
    made.add_token_list(WORDS)
    made.add_token_merges(["a b", "Ġ a"])
    made.add_bos_token_id(1)
    made.add_eos_token_id(2)
    made.add_unk_token_id(0)
    table = {k: v.detach() for k, v in model.state_dict().items()}
    found = {
        "token_embd": table["model.embed_tokens.weight"],
        "output_norm": table["model.norm.weight"],
        "output": table["lm_head.weight"],
    }
    for layer in range(LAYERS):
        for theirs, name in NAMES.items():
            weight = table[f"model.layers.{layer}.{theirs}.weight"]
            if name in ("attn_q", "attn_k"):
                weight = interleaved(weight, HEADS if name == "attn_q" else SHARED)
            found[f"blk.{layer}.{name}"] = weight
    for name, weight in found.items():
        made.add_tensor(f"{name}.weight", weight.contiguous().numpy())
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


@pytest.fixture
def file(llama, tmp_path):
    (tmp_path / "folder").mkdir()
    return write(llama, tmp_path / "folder/tiny.gguf")


@torch.no_grad()
@pytest.mark.parametrize("given", ["file", "folder"])
def test_the_model_that_was_written(llama, file, given):
    ours = load(file if given == "file" else file.parent)
    ids = torch.randint(3, len(WORDS), (2, 40), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(ours(ids), llama(ids).logits, rtol=0, atol=1e-4)
    assert ours.usage.tokenizer is not None


@torch.no_grad()
def test_it_is_made_long(llama, file, tmp_path):
    settings = Conversion(length=128, pattern="sliding(16) | keys(first=2)", rounds=0)
    convert(file, tmp_path / "long", settings)
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "long").eval()
    ids = torch.randint(3, len(WORDS), (1, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(ids).logits, llama(ids).logits, rtol=0, atol=1e-4)
    assert model.config.max_position_embeddings == 128


def test_damaged_and_ambiguous_files(file):
    data = file.read_bytes()
    for kept in (len(data) // 2, 40):
        file.write_bytes(data[:kept])
        for read in (load, lambda path: convert(path, path.parent / "out", SETTINGS)):
            with pytest.raises(WeftError, match=r"cannot be read"):
                read(file)
    file.write_bytes(data)
    (file.parent / "other.gguf").write_bytes(data)
    with pytest.raises(WeftError, match="found 2"):
        load(file.parent)
    with pytest.raises(weft.errors.WeftError, match="found 2"):
        convert(file.parent, file.parent / "out", SETTINGS)


SETTINGS = Conversion(length=128, pattern="sliding(16)", rounds=0)
