"""weft's models in Transformers: the same numbers, files, generation, pipelines and training."""

import json
import subprocess
import sys

import pytest
import torch
import transformers as hf
from citizen_models import CONFIGS, built, decoder, drawn_ids, usage

import weft
import weft.interop.hf as interop
from weft.errors import Unsupported, WeftError
from weft.interop.hf.citizen.tokenizer import tokenizer_for

AUTO = {
    "ForCausalLM": hf.AutoModelForCausalLM,
    "ForMaskedLM": hf.AutoModelForMaskedLM,
    "ForSeq2SeqLM": hf.AutoModelForSeq2SeqLM,
    "ForSequenceClassification": hf.AutoModelForSequenceClassification,
    "Model": hf.AutoModel,
}


def mask_of(*lengths, total):
    return torch.tensor([[0] * (total - length) + [1] * length for length in lengths])


def aligned(model):
    """Weights in memory of their own: products over a mapped file are summed in another order."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model.eval()


def own_outputs(kind, module, ids, mask):
    if kind == "ForSeq2SeqLM":
        return module(ids, source=ids.flip(1), source_valid=mask.bool())
    return module(ids, valid=mask.bool())


def outputs(kind, model, ids, mask):
    if kind == "ForSeq2SeqLM":
        out = model(input_ids=ids.flip(1), attention_mask=mask, decoder_input_ids=ids)
    else:
        out = model(input_ids=ids, attention_mask=mask)
    return out.last_hidden_state if kind == "Model" else out.logits


@pytest.mark.parametrize("kind", CONFIGS)
def test_saved_and_loaded_it_is_the_same(kind, tmp_path):
    module, ids, mask = built(kind), drawn_ids(2, 20), mask_of(14, 20, total=20)
    expected = own_outputs(kind, module, ids, mask)
    model = interop.to_transformers(module)
    assert torch.equal(outputs(kind, model, ids, mask), expected)
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    again, told = AUTO[kind].from_pretrained(tmp_path, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert type(again).__name__ == f"Weft{kind}"
    assert torch.equal(outputs(kind, aligned(again), ids, mask), expected)


@pytest.mark.parametrize("mixer", ["performer", "reformer", "linformer", "fnet", "bigbird"])
def test_tables_that_are_not_saved_are_there(mixer, tmp_path):
    """Random directions and hashes are computed, not loaded."""
    stack = CONFIGS["Model"]().stack
    import dataclasses

    own = weft.mixer(mixer)
    config = dataclasses.replace(CONFIGS["Model"](), stack=dataclasses.replace(stack, mixer=own))
    if not own.traits.compiles or mixer in ("fnet", "linformer"):
        frame = dataclasses.replace(stack.frame, positions=None)
        plain = dataclasses.replace(stack, mixer=own, frame=frame)
        config = dataclasses.replace(config, stack=plain)
    module, ids = built("Model", config), drawn_ids(1, 20)
    interop.to_transformers(module).save_pretrained(tmp_path)
    again = aligned(hf.AutoModel.from_pretrained(tmp_path, device_map="cpu"))
    torch.manual_seed(0)
    expected = module(ids)
    torch.manual_seed(0)
    assert torch.equal(again(input_ids=ids).last_hidden_state, expected)


def test_tied_weights_stay_tied(tmp_path):
    model = interop.to_transformers(built("ForSeq2SeqLM"))
    model.save_pretrained(tmp_path)
    again = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    trunk = again.weft.trunk
    assert trunk.encoder.embedding.table is trunk.decoder.embedding.table
    assert again.num_parameters() == sum(p.numel() for p in built("ForSeq2SeqLM").parameters())


def test_another_process_reads_the_folder(tmp_path):
    model, ids = interop.to_transformers(built("ForCausalLM")), drawn_ids(1, 12)
    model.save_pretrained(tmp_path)
    program = (
        "import sys, torch, weft.interop.hf\n"
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()\n"
        "print(model(torch.tensor([eval(sys.argv[2])])).logits.double().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), str(ids[0].tolist())],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(model(ids).logits.double().sum().item(), abs=1e-3)


@pytest.mark.parametrize("mixer", ["sliding_window(window=6)", "linear_transformer", "full"])
def test_generate_is_wefts(mixer):
    module = built("ForCausalLM", weft.LanguageModel(trunk=decoder(mixer)))
    model, ids = interop.to_transformers(module), drawn_ids(2, 9)
    expected = module.generate(ids, 12)
    assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False), expected)
    given = {"max_new_tokens": 12, "do_sample": False, "use_cache": False}
    assert torch.equal(model.generate(ids, **given), expected)


def test_padded_prompts_are_as_if_alone():
    module = built("ForCausalLM")
    model, ids = interop.to_transformers(module), drawn_ids(3, 9)
    mask = mask_of(4, 9, 4, total=9)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    for row in range(3):
        alone = module.generate(ids[row : row + 1, mask[row].bool()], 8)
        assert torch.equal(out[row, -8:], alone[0, -8:])


def test_beams():
    model, ids = interop.to_transformers(built("ForCausalLM")), drawn_ids(2, 9)
    given = {"attention_mask": mask_of(5, 9, total=9), "max_new_tokens": 8, "num_beams": 3}
    given |= {"do_sample": False, "num_return_sequences": 2}
    assert torch.equal(model.generate(ids, **given), model.generate(ids, **given, use_cache=False))


def test_a_target_is_written_for_a_source():
    module = built("ForSeq2SeqLM")
    model, ids = interop.to_transformers(module), drawn_ids(2, 9)
    given = {"attention_mask": mask_of(5, 9, total=9), "max_new_tokens": 8, "eos_token_id": None}
    out = model.generate(ids, **given, do_sample=False)
    start = torch.full((2, 1), 255)
    own = module.generate(start, 8, source=ids, source_valid=given["attention_mask"].bool())
    assert torch.equal(out, own)
    beams = model.generate(ids, **given, num_beams=3, do_sample=False)
    assert torch.equal(
        beams, model.generate(ids, **given, num_beams=3, use_cache=False, do_sample=False)
    )


def test_the_state_is_as_small_as_wefts():
    module = built("ForCausalLM")
    model = interop.to_transformers(module)
    cache = model.new_cache()
    model.generate(drawn_ids(2, 40), max_new_tokens=9, do_sample=False, past_key_values=cache)
    assert cache.get_seq_length() == 48
    assert cache.size() == 2 * module.state_size(48)


def test_logits_to_keep_and_losses():
    ids, mask = drawn_ids(2, 12), mask_of(8, 12, total=12)
    model = interop.to_transformers(built("ForCausalLM"))
    whole = model(ids, attention_mask=mask)
    assert torch.equal(
        model(ids, attention_mask=mask, logits_to_keep=2).logits, whole.logits[:, -2:]
    )
    labels = ids.masked_fill(mask == 0, -100)
    loss = model(ids, attention_mask=mask, labels=labels).loss
    own = torch.nn.functional.cross_entropy(
        whole.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    torch.testing.assert_close(loss, own)
    judge = interop.to_transformers(built("ForSequenceClassification"))
    found = judge(ids, labels=torch.tensor([0, 2]))
    own = torch.nn.functional.cross_entropy(found.logits, torch.tensor([0, 2]))
    torch.testing.assert_close(found.loss, own)
    writer = interop.to_transformers(built("ForSeq2SeqLM"))
    loss = writer(input_ids=ids, labels=ids).loss
    shown = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=255)
    scores = writer(input_ids=ids, decoder_input_ids=shown).logits
    own = torch.nn.functional.cross_entropy(scores.flatten(0, 1), ids.flatten())
    torch.testing.assert_close(loss, own)


def test_bytes_are_the_ids():
    tokenizer = tokenizer_for(usage("language"))
    text = "Ünï  cödé\n\t\x00 Ā 漢 <pad> …"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    both = tokenizer(["a", "bcd"], padding=True, return_tensors="pt")
    assert both["attention_mask"].tolist() == [[0, 0, 1], [1, 1, 1]]


def test_pipelines(tmp_path):
    judge = built("ForSequenceClassification")
    weft.save(judge, tmp_path / "saved")
    folder = interop.export(tmp_path / "saved", tmp_path / "out")
    pipe = hf.pipeline("text-classification", str(folder))
    texts = ["a good day", "rain"]
    assert [found["label"] for found in pipe(texts)] == judge.predict(texts)
    writer = built("ForCausalLM")
    weft.save(writer, tmp_path / "writer")
    folder = interop.export(tmp_path / "writer", tmp_path / "written")
    pipe = hf.pipeline("text-generation", str(folder))
    found = pipe("to be", max_new_tokens=5, do_sample=False, return_full_text=False)
    own = writer.generate(torch.tensor([list(b"to be")]), 5)[0, -5:]
    assert found[0]["generated_text"] == pipe.tokenizer.decode(own.tolist())


def test_a_trainer_trains(tmp_path):
    model = interop.to_transformers(built("ForSequenceClassification"))
    rows = [{"input_ids": [65 + i % 3] * (4 + i % 5), "labels": i % 3} for i in range(48)]
    settings = hf.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        learning_rate=2e-2,
        per_device_train_batch_size=12,
        report_to=[],
        disable_tqdm=True,
        logging_steps=10,
        save_strategy="no",
        use_cpu=True,
    )
    tokenizer = tokenizer_for(usage("classify"))
    given = {"data_collator": hf.DataCollatorWithPadding(tokenizer), "train_dataset": rows}
    trainer = hf.Trainer(model=model, args=settings, **given)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] / 2


def test_the_export_says_what_it_is(tmp_path):
    weft.save(built("ForSequenceClassification"), tmp_path / "saved")
    folder = interop.export(tmp_path / "saved", tmp_path / "out")
    card = (folder / "README.md").read_text()
    for said in (
        "longformer",
        "task     reviews: classify",
        "40 rows",
        "bad, good, mixed",
        "pipeline(",
    ):
        assert said in card
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "weft"
    assert config["architectures"] == ["WeftForSequenceClassification"]
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "mixed"}
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "out"}
    with pytest.raises(WeftError, match="not empty"):
        interop.export(tmp_path / "saved", folder)


def test_numbers_of_a_regression_are_those_of_predict(tmp_path):
    config = weft.Classifier(trunk=CONFIGS["Model"](), classes=1)
    module = built("regress", config)
    module.usage = usage("regress", offset=3.0, scale=2.5)
    model = interop.to_transformers(module)
    ids = torch.tensor([list(b"a good day")])
    assert model(ids).logits.item() == pytest.approx(module.predict("a good day"), rel=1e-5)


def test_what_is_not_understood_is_refused(tmp_path):
    model, ids = interop.to_transformers(built("ForCausalLM")), drawn_ids(1, 8)
    with pytest.raises(WeftError, match="does not take inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 2, 16))
    with pytest.raises(WeftError, match="does not take position_ids"):
        model(ids, position_ids=torch.arange(8)[None])
    with pytest.raises(WeftError, match=r"attention_mask is \(batch, length\)"):
        model(ids, attention_mask=torch.ones(1, 1, 8, 8))
    with pytest.raises(WeftError, match="keeps its own state and not a DynamicCache"):
        model(ids, past_key_values=hf.DynamicCache())
    other = interop.to_transformers(built("ForCausalLM"))
    with pytest.raises(WeftError, match="the state of another model"):
        model(ids, past_key_values=other.new_cache())
    with pytest.raises(Unsupported, match="leave out cache_implementation"):
        model.generate(ids, max_new_tokens=2, cache_implementation="static")
    cache = model.new_cache()
    model(ids, past_key_values=cache)
    with pytest.raises(Unsupported, match="pad prompts on the left"):
        model(ids, past_key_values=cache, attention_mask=mask_of(9, total=16).flip(1))
    with pytest.raises(Unsupported, match="no class for a weft Matcher"):
        interop.to_transformers(weft.Matcher(trunk=CONFIGS["Model"]()).build())
    model.save_pretrained(tmp_path)
    with pytest.raises(WeftError, match="which is WeftForCausalLM here"):
        hf.AutoModelForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(WeftError, match="no weft model in it"):
        interop.WeftForCausalLM(interop.WeftConfig())
