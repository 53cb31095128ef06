"""Scores by class, against the definitions written out; seen to fail with recall for precision."""

import pytest
import torch

from weft.training.scores.class_scores import BINS, ClassTally


def test_counts_over_batches_equal_the_definitions():
    torch.manual_seed(0)
    scores, y = torch.randn(200, 4) * 2, torch.randint(3, (200,))
    tally = ClassTally(scores)
    for part in (slice(0, 7), slice(7, 150), slice(150, 200)):
        tally.add(scores[part], y[part])
    found = tally.scores()
    best, sure = scores.argmax(-1), scores.softmax(-1).amax(-1)
    for true in range(4):
        for taken in range(4):
            count = int(((y == true) & (best == taken)).sum())
            assert found.confusion[true][taken] == count
    f1 = []
    for k in range(4):
        hit = int(((y == k) & (best == k)).sum())
        precision = hit / max(int((best == k).sum()), 1)
        recall = hit / max(int((y == k).sum()), 1)
        f1.append(2 * precision * recall / (precision + recall) if hit else 0.0)
        own = found.row("abcd")["classes"][k]
        assert own["label"] == "abcd"[k]
        assert (own["precision"], own["recall"]) == pytest.approx((precision, recall))
    assert found.macro_f1 == pytest.approx(sum(f1) / 4)
    error = 0.0
    for b in range(BINS):
        inside = (sure >= b / BINS) & (sure < (b + 1) / BINS)
        if inside.any():
            gap = (best == y)[inside].double().mean() - sure[inside].double().mean()
            error += float(inside.double().mean() * gap.abs())
    assert found.calibration_error == pytest.approx(error, abs=1e-6)


def test_a_class_that_never_occurs_is_left_out():
    tally = ClassTally(torch.zeros(1, 3))
    tally.add(torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]]), torch.tensor([0, 1]))
    found = tally.scores()
    assert found.macro_f1 == 1.0
    assert [own["label"] for own in found.row()["classes"]] == ["0", "1"]


def test_the_reliability_curve_makes_up_the_error():
    torch.manual_seed(1)
    scores, y = torch.randn(300, 5), torch.randint(5, (300,))
    tally = ClassTally(scores)
    tally.add(scores, y)
    found = tally.scores()
    assert sum(own.count for own in found.reliability) == 300
    parts = (own.count * abs(own.accuracy - own.confidence) for own in found.reliability)
    assert sum(parts) / 300 == pytest.approx(found.calibration_error)
    sure = scores.softmax(-1).amax(-1)
    for own in found.reliability:
        at = int(own.confidence * BINS)
        assert own.count == int(((sure * BINS).long() == at).sum())
    assert found.row()["reliability"][0]["count"] == found.reliability[0].count
