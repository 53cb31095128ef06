"""Tokens that leave early, against a plain reference without caches."""

import pytest
import torch
from model_parts import decoder, encoder, ids, lively

from weft.errors import Unsupported
from weft.models import LanguageModel, leaving_early
from weft.models.exits.decoding import token_history
from weft.models.exits.policy import Confidence, Conformal, Never, Patience
from weft.models.stack.sublayer import StackInputs

LAYERS = 4


def model(mixer="full", **settings):
    trunk = decoder(order="sf" * LAYERS, mixer=mixer, **settings)
    return lively(LanguageModel(trunk=trunk, tied=False)).eval()


def plain(lm, tokens, policy, known, exits):
    """Hidden states by recomputation: (n, c) for tokens (n,), and the layers that each ran.

    inputs[l][t] is what token t feeds to layer l: its stream, or, above the layer at which it
    left, the stream it left with. The first `known` tokens are a prompt and run all layers.
    """
    trunk = lm.trunk
    stream = trunk.enter(trunk.embedding(tokens[None]))[0]
    parts = [[trunk.stack.running[i] for i in layer] for layer in trunk.stack.layers]
    inputs = [[[] for _ in part] for part in parts]
    outs, run = [], []
    for t in range(len(tokens)):
        h, left, history = stream[t], None, []
        for layer, part in enumerate(parts, start=1):
            for own, sublayer in zip(inputs[layer - 1], part, strict=True):
                own.append(h)
                if left is None:
                    h = sublayer(torch.stack(own)[None], StackInputs())[0, -1]
            if left is None and layer in exits and layer < LAYERS and t >= known:
                history.append(lm.scores(trunk.stack.norm(h)))
                if policy.leaves(torch.stack(history)[None])[0]:
                    left = layer
        outs.append(trunk.stack.norm(h))
        run.append(left or LAYERS)
    return torch.stack(outs), run


def written(early, prompt, tokens):
    """Hidden states of a prompt in one step and then of tokens one by one."""
    state = early.start(len(prompt))
    hidden, state = early.trunk.step(prompt, state)
    found = [hidden]
    for token in tokens.T:
        hidden, state = early.trunk.step(token[:, None], state)
        found.append(hidden)
    return torch.cat(found, dim=1)


@pytest.mark.parametrize("after", [None, (2,)], ids=["all", "one"])
@pytest.mark.parametrize("mixer", ["full", "sliding_window(window=3)", "sru", "linear_transformer"])
@torch.no_grad()
def test_states_of_skipped_layers_come_from_where_a_token_left(mixer, after):
    lm, text = model(mixer), ids(3, 12)
    sure = token_history(lm, text, after=after)[:, 4:, 0].softmax(-1).amax(-1)
    policy = Confidence(float(sure.median()) + 1e-6)  # no tie
    early = leaving_early(lm, policy, after)
    found = written(early, text[:, :4], text[:, 4:])
    run = torch.stack(early.trunk.layers_run, dim=1)  # (3, 8)
    for row in range(3):
        truth, layers = plain(lm, text[row], policy, 4, early.trunk.exits)
        torch.testing.assert_close(found[row], truth)
        assert run[row].tolist() == layers[4:]
    assert len(run.unique()) > 1, "tokens should leave at different layers, or nothing is tested"


def test_forgetting_the_skipped_layers_is_noticed():
    """A twin that leaves their states as they were."""
    lm, policy = model(), Confidence(0.45)
    early, text = leaving_early(lm, policy), ids(1, 12)
    for sublayer in early.trunk.stack.running:
        sublayer.absorb = lambda h, given, state: state
    with torch.no_grad():
        found = written(early, text[:, :4], text[:, 4:])
        truth, _ = plain(lm, text[0], policy, 4, early.trunk.exits)
    assert not torch.allclose(found[0], truth)


@pytest.mark.parametrize("policy", [Never(), Confidence(1.0), Patience(LAYERS)], ids=str)
def test_tokens_of_the_full_model_where_no_one_leaves(policy):
    lm, prompts = model(), ids(2, 5)
    early = leaving_early(lm, policy)
    assert torch.equal(early.generate(prompts, 12), lm.generate(prompts, 12))
    assert all(bool((run == LAYERS).all()) for run in early.trunk.layers_run)


def test_the_model_itself_is_not_changed():
    lm, prompts = model(), ids(2, 5)
    before = lm.generate(prompts, 12)
    early = leaving_early(lm, Confidence(0.0))
    assert not torch.equal(early.generate(prompts, 12), before)
    assert all(bool((run == 1).all()) for run in early.trunk.layers_run)
    assert torch.equal(lm.generate(prompts, 12), before)
    assert early.trunk.stack is lm.trunk.stack


def test_batch_mates_change_nothing():
    lm = model()
    early, prompts = leaving_early(lm, Confidence(0.45)), ids(3, 5)
    together = early.generate(prompts, 10)
    for row in range(3):
        assert torch.equal(early.generate(prompts[row : row + 1], 10)[0], together[row])


@torch.no_grad()
def test_registers_and_other_positions():
    lm = model(embed={"registers": 2, "positions": "none"})
    early, prompts = leaving_early(lm, Never()), ids(2, 5)
    assert torch.equal(early.generate(prompts, 6), lm.generate(prompts, 6))


@torch.no_grad()
def test_the_history_of_known_text_is_what_exits_would_say():
    lm, text = model(), ids(2, 9)
    history = token_history(lm, text)
    torch.testing.assert_close(history[:, :, -1], lm(text))
    early = leaving_early(lm, Confidence(0.0))  # leaves after layer 1: of the first token alone
    hidden, _ = early.trunk.step(text[:, :1], early.start(2))
    torch.testing.assert_close(lm.scores(hidden)[:, 0], history[:, 0, 0])
    assert token_history(lm, text, after=(2,)).shape == (2, 9, 2, 11)


@torch.no_grad()
def test_a_rule_calibrated_on_text_agrees_as_promised():
    """Tokens after true prefixes: those not used to calibrate agree at least as often."""
    lm = model()
    rows = token_history(lm, ids(60, 12)).flatten(0, 1)  # (720, exits, vocab)
    rule = Conformal(0.2).fitted(rows[:480], rows[:480, -1].argmax(-1))
    fresh, exits = rows[480:], LAYERS
    answer, open_ = fresh[:, -1].argmax(-1), torch.ones(len(fresh), dtype=torch.bool)
    early = torch.zeros(len(fresh), dtype=torch.bool)
    for k in range(1, exits):
        leaving = rule.leaves(fresh[:, :k]) & open_
        answer[leaving], open_ = fresh[leaving, k - 1].argmax(-1), open_ & ~leaving
        early |= leaving
    assert (answer == fresh[:, -1].argmax(-1)).double().mean() >= 0.8 - 3 * (0.16 / 240) ** 0.5
    assert early.any()


def test_only_decoders():
    lm = lively(LanguageModel(trunk=encoder(order="sfsf"), tied=False))
    with pytest.raises(Unsupported, match="EarlyExit"):
        leaving_early(lm, Never())
