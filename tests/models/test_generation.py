import pytest
import torch
from model_parts import VOCAB, Learner, decoder, encoder, ids, lively

from weft.errors import Unsupported, WeftError
from weft.generate import Sampling
from weft.mixers import MIXERS
from weft.models import EncoderDecoder, LanguageModel

FULL = MIXERS["full"]


def language_model(**settings):
    settings = {"mixer": FULL(), "frame": {"length": 30}, **settings}
    return lively(LanguageModel(trunk=decoder(**settings), tied=False))


def continued(model, row, new, **extra):
    """Greedy by full forwards alone."""
    model.eval()
    for _ in range(new):
        best = model(row[None], **extra)[0, -1].argmax()
        row = torch.cat((row, best[None]))
    return row


@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("recompute", ["nothing", "checkpoint", "reversible"])
def test_greedy_equals_repeated_forward(registers, recompute):
    model = language_model(embed={"registers": registers}, recompute=recompute)
    got = model.generate(ids(3, 4), 8)
    assert got.shape == (3, 12)
    for row, prompt in zip(got, ids(3, 4), strict=True):
        assert torch.equal(row, continued(model, prompt, 8))
    assert len(got[:, 4:].unique()) > 3
    without_context = model(got[:, 3:-1].reshape(-1, 1)).argmax(-1).view(3, 8)
    assert not torch.equal(without_context, got[:, 4:])


def test_prompts_of_any_length_together():
    model = language_model()
    prompts = [ids(n, seed=n) for n in (5, 2, 7, 2, 5)]
    got = model.generate(prompts, 6)
    for row, prompt in zip(got, prompts, strict=True):
        assert torch.equal(row, continued(model, prompt, 6))


@pytest.mark.parametrize("mixer", ["full", "sliding_window(window=3)", "linear_transformer", "gru"])
def test_rows_join_as_one_batch(mixer):
    model, sizes = language_model(mixer=mixer), []
    step = model.trunk.step
    model.trunk.step = lambda x, state: sizes.append(tuple(x.shape)) or step(x, state)
    model.generate([ids(n, seed=n) for n in (2, 4, 7)], 8)
    read = [(1, 2), (1, 4), (1, 7)]
    assert [size for size in sizes if size[1] > 1] == read
    assert sizes.count((3, 1)) == 2  # from the longest prompt to the end of the shortest row
    assert len(sizes) == 3 + (7 + 7 - 2)


def test_encoder_decoder_continues_each_target_for_its_source():
    reading = decoder(order="scfscf", mixer=FULL(), cross=FULL())
    both = EncoderDecoder(encoder=encoder(mixer=FULL()), decoder=reading)
    model = lively(LanguageModel(trunk=both, tied=False))
    source, prompts = ids(3, 6, seed=4), [ids(3, seed=1), ids(1, seed=2), ids(3, seed=3)]
    keep = torch.tensor([[1] * 6, [0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
    got = model.generate(prompts, 5, source=source, source_valid=keep)
    for i, row in enumerate(got):
        own = source[i : i + 1, keep[i]]
        assert torch.equal(row, continued(model, prompts[i], 5, source=own))
    assert len(torch.cat([row[-5:] for row in got]).unique()) > 1
    swapped = model.generate(prompts, 5, source=source.roll(1, 0), source_valid=keep.roll(1, 0))
    assert not all(torch.equal(a, b) for a, b in zip(got, swapped, strict=True))


def test_refuses_prompts_without_their_sources():
    reading = decoder(order="sc", mixer=FULL(), cross=FULL())
    model = lively(
        LanguageModel(trunk=EncoderDecoder(encoder=encoder(), decoder=reading), tied=False)
    )
    with pytest.raises(WeftError, match="one source for each prompt: got 3 and 2"):
        model.generate(ids(2, 3), 2, source=ids(3, 4))


def test_training_mode_returns_and_dropout_stays_out():
    model = language_model(dropout=0.5).train()
    model.trunk.embedding.eval()
    assert torch.equal(model.generate(ids(2, 4), 6), model.generate(ids(2, 4), 6))
    assert model.training
    assert model.trunk.stack.training
    assert not model.trunk.embedding.training


def test_nothing_to_add():
    assert torch.equal(language_model().generate(ids(2, 4), 0), ids(2, 4))


def test_stop_ends_a_row_and_keeps_the_token():
    model = language_model()
    prompts = ids(3, 4)
    plain = model.generate(prompts, 8)
    end = int(plain[0, 6])
    place = [next((n for n in range(4, 12) if plain[b, n] == end), 11) for b in range(3)]
    rows = model.generate(list(prompts), 8, stop=end)
    for b in range(3):
        assert torch.equal(rows[b], plain[b, : place[b] + 1])
    together = model.generate(prompts, 8, stop=[end])
    assert together.shape == (3, max(place) + 1)
    for b in range(3):
        assert torch.equal(together[b, : len(rows[b])], rows[b])
        assert (together[b, len(rows[b]) :] == end).all()


def test_a_stop_token_in_the_prompt_ends_nothing():
    model = language_model()
    prompt = ids(4)
    free = model.generate([prompt], 3)[0]
    absent = next(t for t in prompt.tolist() if t not in free[4:].tolist())
    assert torch.equal(model.generate([prompt], 3, stop=absent)[0], free)


def test_stops_working_when_all_rows_have_ended():
    model = language_model()
    end = int(model.generate(ids(1, 4), 1)[0, -1])
    calls, step = [], model.trunk.step
    model.trunk.step = lambda *args: calls.append(1) or step(*args)
    assert model.generate(ids(1, 4), 20, stop=end).shape == (1, 5)
    assert len(calls) == 1


def test_a_row_is_drawn_alike_in_any_company():
    model = language_model()
    prompts = [ids(n, seed=n) for n in (3, 5, 3, 4)]
    settings = {"temperature": 1.0, "seed": 7}
    together = model.generate(prompts, 9, **settings)
    assert torch.equal(model.generate(prompts[:2], 9, **settings)[1], together[1])
    same = model.generate(torch.stack([prompts[0], prompts[1][:3], prompts[2]]), 9, **settings)
    assert torch.equal(same[2], together[2])
    assert torch.equal(same[0], together[0])


def test_seeds_and_the_global_seed():
    model, settings = language_model(), {"temperature": 2.0}
    prompt = torch.stack([ids(3), ids(3)])
    one = model.generate(prompt, 12, seed=1, **settings)
    assert torch.equal(one, model.generate(prompt, 12, seed=1, **settings))
    two = model.generate(prompt, 12, seed=2, **settings)
    rows = [tuple(row.tolist()) for row in (*one, *two)]
    assert len(set(rows)) == 4
    torch.manual_seed(3)
    free = model.generate(prompt, 12, **settings)
    assert not torch.equal(free, model.generate(prompt, 12, **settings))
    torch.manual_seed(3)
    assert torch.equal(free, model.generate(prompt, 12, **settings))


def frequencies(sampling, scores, draws=20_000):
    generators = [torch.Generator().manual_seed(s) for s in range(draws)]
    picked = sampling.pick(scores.expand(draws, -1), generators)
    return torch.bincount(picked, minlength=len(scores)) / draws


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"temperature": 1.0}, [0, 1, 2, 3, 4]),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4]),
        ({"temperature": 3.0}, [0, 1, 2, 3, 4]),
        ({"temperature": 1.0, "top_k": 2}, [1, 3]),
        ({"temperature": 1.0, "top_k": 9}, [0, 1, 2, 3, 4]),
        # Probabilities of 1, 3, 0: 0.526, 0.319, 0.117; the third brings the sum beyond 0.9.
        ({"temperature": 1.0, "top_p": 0.9}, [0, 1, 3]),
        ({"temperature": 1.0, "top_p": 0.84}, [1, 3]),
        ({"temperature": 1.0, "top_p": 0.01}, [1]),
        # Of the two best the first has 0.62 of the probability.
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.6}, [1]),
        ({"temperature": 0.0}, [1]),
    ],
)
def test_tokens_are_drawn_from_the_right_distribution(settings, kept):
    scores = torch.tensor([0.5, 2.0, -1.0, 1.5, -1.5])
    expected = torch.zeros(5)
    temperature = settings["temperature"] or 1.0
    expected[kept] = torch.softmax(scores[kept] / temperature, 0)
    got = frequencies(Sampling(**settings), scores)
    assert set(got.nonzero().flatten().tolist()) == set(kept)
    # Four standard deviations of a frequency over 20,000 draws.
    assert ((got - expected).abs() <= 4 * (expected * (1 - expected) / 20_000).sqrt()).all()


def test_ties_keep_exactly_k():
    got = frequencies(Sampling(temperature=1.0, top_k=2), torch.zeros(6), draws=500)
    assert (got > 0).sum() == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.generate(ids(1, 3), 2, temperature=-1.0), "0 .* or more; got -1.0"),
        (lambda m: m.generate(ids(1, 3), 2, temperature=1.0, top_k=0), "got top_k=0"),
        (lambda m: m.generate(ids(1, 3), 2, temperature=1.0, top_p=0.0), "got top_p=0.0"),
        (lambda m: m.generate(ids(1, 3), 2, top_k=3), "no effect; give a temperature"),
        (lambda m: m.generate(ids(1, 3), -1), "0 or more; got -1"),
        (lambda m: m.generate(ids(1, 0), 2), r"at least one token each; got a row \(0,\)"),
        (lambda m: m.generate([ids(1, 3)], 2), r"got a row \(1, 3\)"),
        (lambda m: m.generate([ids(3).float()], 2), "integer ids"),
        (lambda m: m.generate([[1, 2]], 2), r"got a row \[1, 2\]"),
        (lambda m: m.generate(ids(1, 3) + VOCAB, 2), "ids run from 0 to vocab"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(WeftError, match=message):
        call(language_model())


def test_refuses_at_once_what_would_not_fit():
    model = language_model(embed={"positions": "learned"})
    assert model.generate(ids(1, 3), 28).shape == (1, 31)
    model.trunk.step = None
    with pytest.raises(WeftError, match=r"has 31 tokens, but .* positions for 30"):
        model.generate(ids(1, 3), 29)


def test_refuses_a_mixer_that_cannot_stream():
    with pytest.raises(Unsupported, match="learner does not stream"):
        language_model(mixer=Learner()).generate(ids(1, 3), 2)
