"""Decoding leaves dropout out, and the mode of the model as it was, however decodings overlap."""

import threading

import torch

from weft.generate.text import ByteText
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Decoder, LanguageModel, Stack


def model_with_dropout():
    torch.manual_seed(0)
    stack = Stack(frame=Frame(dim=16, heads=2, dropout=0.5), order="sf", mixer="full", dropout=0.5)
    return LanguageModel(trunk=Decoder(embedding=Embedding(vocab=256), stack=stack)).build().train()


def last(pieces):
    return list(pieces)[-1].tokens


def test_streams_that_are_read_in_turns_have_no_dropout():
    model, prompt = model_with_dropout(), torch.tensor([[1, 2, 3]])
    expected = last(model.eval().stream(prompt, 24, text=ByteText()))
    model.train()
    short, long = (model.stream(prompt, count, text=ByteText()) for count in (2, 24))
    next(short)
    next(long)
    list(short)  # ends first, while the other goes on
    assert not model.training
    assert last(long) == expected
    assert all(module.training for module in model.modules())


def test_parts_that_did_not_train_stay_so():
    model = model_with_dropout()
    model.trunk.embedding.eval()
    prompt = torch.tensor([[1, 2, 3]])
    one, two = (model.stream(prompt, count, text=ByteText()) for count in (2, 3))
    next(one), next(two)
    list(one), list(two)
    frozen = set(model.trunk.embedding.modules())
    assert {module for module in model.modules() if not module.training} == frozen


def test_a_stream_that_is_closed_early_ends_its_decoding():
    model = model_with_dropout()
    pieces = model.stream(torch.tensor([[1, 2, 3]]), 9, text=ByteText())
    next(pieces)
    pieces.close()
    assert all(module.training for module in model.modules())


def test_threads_decode_as_one_alone():
    model, prompt = model_with_dropout(), torch.tensor([[1, 2, 3]])
    expected = model.generate(prompt, 40)
    found, start = {}, threading.Barrier(6)

    def decode(number):
        start.wait()
        for again in range(3):
            new = 1 + 13 * ((number + again) % 4)
            found[number, again] = model.generate(prompt, new)

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 18
    for tokens in found.values():
        assert torch.equal(tokens, expected[:, : tokens.shape[1]])
    assert all(module.training for module in model.modules())
