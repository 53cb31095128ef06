import math

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding, sinusoid

IDS = torch.tensor([[3, 1, 4, 1], [5, 0, 2, 6]])


def build(dim=6, length=None, **settings):
    return Embedding(**settings).build(dim, length).double()


def test_tokens_are_rows_of_the_table():
    module = build(vocab=7)
    for b in range(2):
        for n in range(4):
            assert torch.equal(module(IDS)[b, n], module.table[IDS[b, n]])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_any_integers_are_ids(dtype):
    module = build(vocab=7)
    assert torch.equal(module(IDS.to(dtype)), module(IDS))


def test_continuous_inputs_are_projected():
    module, x = build(channels=3), torch.randn(2, 5, 3, dtype=torch.float64)
    expected = torch.einsum("bnk,ck->bnc", x, module.linear.weight) + module.linear.bias
    torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("dim", [6, 7])
def test_sinusoid_is_the_papers(dim):
    table = sinusoid(torch.tensor([0, 1, 999]), dim)
    for row, p in enumerate([0, 1, 999]):
        for c in range(dim):
            angle = p / 10_000 ** (2 * (c // 2) / dim)
            expected = math.sin(angle) if c % 2 == 0 else math.cos(angle)
            assert table[row, c].item() == pytest.approx(expected, abs=1e-12)


def test_learned_positions_count_from_start():
    module, plain = build(vocab=7, positions="learned", length=9), build(vocab=7)
    plain.table = module.table
    torch.testing.assert_close(
        module(IDS, start=3) - plain(IDS), module.positions[3:7].expand(2, -1, -1)
    )


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_padding_moves_no_position(positions):
    module = build(vocab=7, positions=positions, length=4)
    padded = torch.tensor([[-1, 3, -1, -1, 1, 4, 99, 1]])
    valid = torch.tensor([[0, 1, 0, 0, 1, 1, 0, 1]], dtype=torch.bool)
    torch.testing.assert_close(module(padded, valid=valid)[valid], module(IDS[:1])[0])


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_pieces_equal_the_whole(positions):
    module = build(vocab=7, positions=positions, length=4)
    pieces = [module(IDS[:, :1]), module(IDS[:, 1:3], start=1), module(IDS[:, 3:], start=3)]
    torch.testing.assert_close(torch.cat(pieces, 1), module(IDS))


def test_every_term_starts_at_one_scale():
    torch.manual_seed(0)
    scales = {
        "tokens": build(dim=256, vocab=500).table.std(),
        "registers": build(dim=256, vocab=5, registers=200).registers.std(),
        "learned": build(dim=256, vocab=5, positions="learned", length=500).positions.std(),
        "channels": build(dim=256, channels=40)(torch.randn(9, 9, 40, dtype=torch.float64)).std(),
    }
    module = build(dim=256, vocab=5, positions="sinusoidal")
    with torch.no_grad():
        module.table.zero_()
    scales["sinusoid"] = module(torch.zeros(1, 4000, dtype=torch.long)).pow(2).mean().sqrt()
    for name, scale in scales.items():
        assert scale.item() == pytest.approx(1.0, rel=0.05), name


def test_no_registers_leave_no_parameter():
    assert [name for name, _ in build(vocab=7).named_parameters()] == ["table"]
    assert build(vocab=7, registers=2).registers.shape == (2, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab": 5, "channels": 3}, "got vocab=5 and channels=3"),
        ({"vocab": 0}, "at least 1; got vocab=0"),
        (
            {"vocab": 5, "positions": "rope"},
            "positions is one of 'none', 'sinusoidal', 'learned'; got 'rope'",
        ),
        ({"vocab": 5, "registers": -1}, "0 or more; got -1"),
    ],
)
def test_refuses_settings(settings, message):
    with pytest.raises(WeftError, match=message):
        Embedding(**settings)


def test_what_enters_may_be_left_open_until_it_is_built():
    with pytest.raises(WeftError, match="exactly one of them; got vocab=None and channels=None"):
        Embedding(rbf_levels=4).build(6)


def test_refuses_learned_positions_without_a_length():
    with pytest.raises(
        WeftError, match=r"give Frame\(length=...\), or take positions='sinusoidal'"
    ):
        build(vocab=5, positions="learned")


@pytest.mark.parametrize(
    ("settings", "x", "valid", "message"),
    [
        ({"vocab": 6}, IDS, None, "from 0 to vocab − 1 = 5; got 6"),
        ({"vocab": 7}, -IDS, None, "got -6"),
        (
            {"vocab": 7},
            IDS.float(),
            None,
            r"integers \(batch, length\); got torch.float32 \(2, 4\)",
        ),
        ({"vocab": 7}, IDS > 3, None, "got torch.bool"),
        ({"vocab": 7}, IDS[0], None, r"got torch.int64 \(4,\)"),
        ({"channels": 3}, torch.randn(2, 4, 2), None, r"\(batch, length, 3\); got .* \(2, 4, 2\)"),
        ({"channels": 4}, IDS[None], None, "real numbers .* got torch.int64"),
        ({"vocab": 7}, IDS, torch.ones(2, 3, dtype=torch.bool), r"= \(2, 4\), True where"),
        ({"vocab": 7}, IDS, torch.ones(2, 4), "got torch.float32"),
        ({"vocab": 7, "positions": "learned"}, IDS, None, "has 4 tokens, but .* positions for 3"),
    ],
)
def test_refuses_inputs(settings, x, valid, message):
    module = Embedding(**settings).build(6, 3)
    with pytest.raises(WeftError, match=message):
        module(x, valid=valid)


def test_bumps_embed_levels_by_gaussians():
    module = build(vocab=256, rbf_levels=8)
    ids = torch.tensor([[0, 1, 128, 255]])
    rows = []
    for level in (0, 1, 128, 255):
        bumps = [math.exp(-0.5 * (level * 7 / 255 - k) ** 2) for k in range(8)]
        rows.append(module.linear(torch.tensor(bumps, dtype=torch.float64)))
    torch.testing.assert_close(module(ids)[0], torch.stack(rows))
    assert not hasattr(module, "table")
    near = (module(ids)[0, 0] - module(ids)[0, 1]).norm()
    assert near < 0.1 * (module(ids)[0, 0] - module(ids)[0, 2]).norm()


@pytest.mark.parametrize("wrong", [{"channels": 3, "rbf_levels": 4}, {"vocab": 5, "rbf_levels": 6}])
def test_bumps_need_levels(wrong):
    with pytest.raises(WeftError, match="levels on a scale"):
        Embedding(**wrong)


def test_a_factorised_table_is_a_product_of_two():
    module = build(vocab=7, factor=2)
    full = module.table @ module.waist.T  # (7, 6)
    assert module.table.shape == (7, 2)
    torch.testing.assert_close(module(IDS), full[IDS])
    assert torch.linalg.matrix_rank(full) == 2


def test_an_adaptive_input_gives_rare_tokens_narrow_rows():
    module = build(dim=16, vocab=7, cutoffs=(2, 5), frequent=(6, 1))
    order = [6, 1, 0, 2, 3, 4, 5]  # ids by rank
    tables, waists = module.clusters.tables, module.clusters.waists
    assert [tuple(t.shape) for t in tables] == [(2, 16), (3, 4), (2, 1)]
    full = torch.cat([table @ waist.T for table, waist in zip(tables, waists, strict=True)])
    for b in range(2):
        for n in range(4):
            expected = full[order.index(IDS[b, n].item())]
            torch.testing.assert_close(module(IDS)[b, n], expected)
    wrong = build(dim=16, vocab=7, cutoffs=(2, 5))
    wrong.clusters.tables, wrong.clusters.waists = tables, waists
    assert not torch.allclose(wrong(IDS), module(IDS))


@pytest.mark.parametrize("settings", [{"factor": 16}, {"cutoffs": (2000,)}], ids=str)
def test_narrow_tables_start_at_one_scale(settings):
    torch.manual_seed(0)
    module = build(dim=256, vocab=4000, **settings)
    ids = torch.arange(4000)[None]
    for part in module(ids)[0].split(2000):
        assert part.std().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab": 7, "factor": 2, "cutoffs": (3,)}, "one of them; got rbf_levels=None, factor=2"),
        ({"channels": 7, "factor": 2}, "vocab=None"),
        ({"vocab": 7, "factor": 0}, "at least 1; got 0"),
        ({"vocab": 7, "cutoffs": (9,)}, r"cutoffs=\(9,\) for vocab=7"),
        ({"vocab": 7, "frequent": (1,)}, "give cutoffs, or drop it"),
    ],
    ids=range(5),
)
def test_refuses_tables(settings, message):
    with pytest.raises(WeftError, match=message):
        Embedding(**settings)


@pytest.mark.parametrize(
    "settings", [{}, {"factor": 2}, {"cutoffs": (3,)}, {"rbf_levels": 3}], ids=str
)
def test_embedders_share_their_tokens(settings):
    one, two = build(vocab=7, **settings), build(vocab=7, **settings)
    assert not torch.equal(one(IDS), two(IDS))
    one.share(two)
    assert torch.equal(one(IDS), two(IDS))
    assert {id(p) for p in one.parameters()} == {id(p) for p in two.parameters()}
    with pytest.raises(WeftError, match="are of one kind"):
        one.share(build(vocab=8, **settings))
