"""lm-eval scores a weft model through its Transformers form, and finds what weft computes."""

import json

import pytest
import torch

import weft
from weft.interop.hf import to_transformers
from weft.interop.hf.citizen.tokenizer import byte_tokenizer

pytestmark = pytest.mark.long

KEYS = ("3917", "8052", "6640", "1279")
CHOICES = """
task: weft_needle_choice
dataset_path: json
dataset_kwargs: {data_files: {test: NEEDLES}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{text}} The key is"
doc_to_choice: "{{choices}}"
doc_to_target: "{{target}}"
target_delimiter: " "
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WRITTEN = """
task: weft_needle_written
dataset_path: json
dataset_kwargs: {data_files: {test: NEEDLES}}
test_split: test
output_type: generate_until
doc_to_text: "{{text}} The key is"
doc_to_target: "{{choices[target]}}"
generation_kwargs: {until: ["~~~"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture
def writer():
    """A language model of bytes, its weights drawn."""
    torch.manual_seed(0)
    frame = weft.Frame(dim=32, heads=4, positions=weft.Rope())
    stack = weft.Stack(frame=frame, order="sfsf", mixer="sliding_window(window=48)")
    trunk = weft.Decoder(embedding=weft.Embedding(vocab=256), stack=stack)
    return weft.LanguageModel(trunk=trunk).build().eval()


@pytest.fixture
def needles(tmp_path):
    """A key at some depth of a text; the task is to name it."""
    rows = []
    for at in range(8):
        hay = ["The grass is green. "] * 6
        hay.insert(at % 6, f"The key is {KEYS[at % 4]}. ")
        rows.append({"text": "".join(hay).strip(), "choices": list(KEYS), "target": at % 4})
    path = tmp_path / "needles.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in (("choice", CHOICES), ("written", WRITTEN)):
        (tmp_path / f"{name}.yaml").write_text(task.replace("NEEDLES", str(path)))
    return rows


@pytest.fixture
def score(writer, needles, tmp_path, monkeypatch):
    """The samples and results of a task."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: make .venv/weights")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager
    from transformers import PreTrainedTokenizerFast

    words = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), padding_side="left")
    words.add_special_tokens({"pad_token": "<|pad|>", "eos_token": "<|end|>"})
    model = HFLM(
        to_transformers(writer), tokenizer=words, batch_size=3, max_length=512, device="cpu"
    )
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)

    def run(task):
        found = lm_eval.simple_evaluate(
            model, tasks=[task], task_manager=manager, bootstrap_iters=0
        )
        return found["samples"][task], found["results"][task]

    return run


@torch.no_grad()
def log_likelihood(model, text, more):
    ids = torch.tensor([list((text + more).encode())])
    own = len(more.encode())
    scores = model(ids).log_softmax(-1)[0, -own - 1 : -1]
    return float(scores.gather(1, ids[0, -own:, None]).sum())


@pytest.mark.filterwarnings("ignore")  # of lm-eval and its parts
def test_likelihoods_are_those_of_weft(score, writer, needles):
    samples, results = score("weft_needle_choice")
    right = 0
    for sample in samples:
        row = sample["doc"]
        text = f"{row['text']} The key is"
        ours = [log_likelihood(writer, text, f" {key}") for key in KEYS]
        theirs = [float(one[0]) for one in sample["filtered_resps"]]
        assert theirs == pytest.approx(ours, abs=1e-3)
        right += max(range(4), key=ours.__getitem__) == row["target"]
    assert len(samples) == len(needles)
    assert results["acc,none"] == pytest.approx(right / len(needles))


@pytest.mark.filterwarnings("ignore")
def test_what_is_written_is_what_weft_writes(score, writer, needles):
    samples, _ = score("weft_needle_written")
    for sample in samples:
        prompt = list(f"{sample['doc']['text']} The key is".encode())
        ours = writer.generate(torch.tensor([prompt]), 6)[0, len(prompt) :]
        shown = bytes(ours.tolist()).decode(errors="replace")
        assert sample["filtered_resps"][0] == shown
