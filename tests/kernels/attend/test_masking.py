"""Labels say who may read whom across padding and packed documents, in any order."""

import torch

from weft.kernels.attend.masking import KeyLabels, make_labels

VALID = torch.tensor([[True, True, False, True, False], [False, True, True, True, True]])
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [7, 7, 7, 2, 2]])


def readable(n, valid=None, segments=None):
    """(b, n, m) by the definition, for queries that are the last n of m."""
    b, m = VALID.shape
    seen = torch.ones(b, n, m, dtype=torch.bool)
    for a in range(b):
        for i in range(n):
            for j in range(m):
                real = valid is None or bool(valid[a, j])
                same = segments is None or segments[a, m - n + i] == segments[a, j]
                seen[a, i, j] = real and same
    return seen


def every(labels, n):
    return labels.dense().expand(-1, n, -1)


def test_pairs():
    assert make_labels(None, None, 5) is None
    for n in (1, 3, 5):
        for given in ((VALID, None), (None, SEGMENTS), (VALID, SEGMENTS)):
            expected = readable(n, *given)
            assert (every(make_labels(*given, n), n) == expected).all()


def test_taking_follows_the_order_of_queries_and_keys():
    rows, cols = torch.tensor([3, 0, 2]), torch.tensor([4, 4, 1, 0])
    for given in ((VALID, None), (VALID, SEGMENTS)):
        labels = make_labels(*given, 5)
        taken = every(labels.take(rows, cols), 3)
        assert (taken == readable(5, *given)[:, rows][:, :, cols]).all()
        assert (every(labels.take(None, cols), 5) == readable(5, *given)[:, :, cols]).all()
        assert (every(labels.take(rows, None), 3) == readable(5, *given)[:, rows]).all()


def test_folding_makes_rows_of_residue_classes():
    for given in ((VALID, None), (None, SEGMENTS), (VALID, SEGMENTS)):
        for s in (2, 3):
            folded = make_labels(*given, 5).fold(s)
            long = -(-5 // s)
            assert folded.keys.shape == (2 * s, long)
            expected = readable(5, *given)
            for a in range(2):
                for r in range(s):
                    own = expected[a, r::s, r::s]
                    found = folded.dense()[a * s + r]
                    assert (found[: len(own), : len(own)] == own).all()
                    # Tokens that folding adds at the end are read by no real one.
                    assert not found[: len(own), len(own) :].any()


def test_padding_is_not_read_by_a_segment_of_its_own_number():
    labels = make_labels(VALID, SEGMENTS, 5)
    assert isinstance(labels, KeyLabels)
    assert not labels.dense()[~VALID[:, None, :].expand(-1, 5, -1)].any()
