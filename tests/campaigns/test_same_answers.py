"""Threads, forks, pickles and deep copies give the same answers, bit for bit."""

import copy
import multiprocessing
import pickle
import threading

import pytest
import torch

from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.models import Decoder, LanguageModel, Stack
from weft.testing import cases, small

CONFIGS = [small(MIXERS[name]) for name in MIXERS]


def built(config):
    frame = list(cases.frames(config))[-1]  # causal where it can be
    return cases.build(config, frame, torch.float32), cases.tokens(2, 43, cases.DIM).float()


def answer(mixer, x):
    with torch.no_grad():
        return mixer(x)


def answer_in_child(connection, mixer, x):
    torch.set_num_threads(1)
    connection.send(answer(mixer, x).numpy().tobytes())


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_copy_answers_the_same(config):
    mixer, x = built(config)
    expected = answer(mixer, x)
    for other in (copy.deepcopy(mixer), pickle.loads(pickle.dumps(mixer))):
        assert torch.equal(answer(other, x), expected)
    assert pickle.loads(pickle.dumps(config)) == config
    assert torch.equal(answer(mixer, x), expected)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_threads_answer_the_same(config):
    """Lengths that differ between threads, so that a cache of one would serve another."""
    mixer, x = built(config)
    expected = {n: answer(mixer, x[:, :n]) for n in (43, 17, 5)}
    found, start = [], threading.Barrier(4)
    cores = torch.get_num_threads()  # a new thread has a number of its own, and sums in its order

    def work(number):
        torch.set_num_threads(cores)
        start.wait()
        for turn in range(4):
            n = (43, 17, 5)[(number + turn) % 3]
            found.append((n, answer(mixer, x[:, :n])))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(torch.equal(y, expected[n]) for n, y in found)


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_another_process_answers_the_same(config, method):
    """Pickled into a process that was started anew, or shared with one that was forked."""
    mixer, x = built(config)
    expected = answer(mixer, x)
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=answer_in_child, args=(theirs, mixer, x))
    child.start()
    assert ours.poll(120), "the child gave no answer"
    assert ours.recv() == expected.numpy().tobytes()
    child.join()
    assert child.exitcode == 0


def test_decodings_of_threads_are_those_of_one():
    stack = Stack(frame=Frame(dim=16, heads=2, dropout=0.5), order="sfsf", mixer="sliding_window")
    model = LanguageModel(trunk=Decoder(embedding=Embedding(vocab=31), stack=stack)).build().train()
    prompts = torch.randint(31, (8, 1, 5), generator=torch.Generator().manual_seed(1))
    expected = [model.generate(prompt, 30) for prompt in prompts]
    found = {}

    def work(number):
        found[number] = model.generate(prompts[number], 30)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[number], expected[number]) for number in range(8))
    assert model.training
