"""Distillation against the equation in numpy, and its start from every second layer."""

import dataclasses

import numpy as np
import pytest
import torch
from objective_parts import CLASSES, rows
from test_classify import log_softmax
from test_early_exit_objective import trunk

from weft.errors import WeftError
from weft.models import load, prune_layers, save
from weft.objectives import OBJECTIVES, Batch, CausalLM, Classify, Distill, Head, MaskedLM
from weft.objectives.distill import distance
from weft.objectives.masked_lm import Hidden

INNER = {"classify": Classify(), "causal_lm": CausalLM(), "masked_lm": MaskedLM(rate=0.5)}


def stirred(objective, order, seed, dim=8):
    from weft.mixers import Frame

    torch.manual_seed(seed)
    frame = Frame(dim=dim, heads=2, length=20)
    model = objective.build(trunk(order=order, frame=frame), Head(classes=CLASSES)).build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


@pytest.fixture(params=INNER)
def taught(request, tmp_path):
    """An objective, a student and its teacher, saved and loaded."""
    inner = INNER[request.param]
    folder = save(stirred(inner, "sfsfsfsf", 1), tmp_path / "teacher")
    objective = Distill(teacher=str(folder), of=inner, alpha=0.3, temperature=2.5)
    return objective, stirred(inner, "sfsf", 2), load(folder)


def asked(objective, model, batch):
    """What is shown and which (row, place, target) count, by the inner objective's own rules."""
    if isinstance(objective.of, Classify):
        return batch.x, [(row, None, int(y)) for row, y in enumerate(batch.y)]
    if isinstance(objective.of, CausalLM):
        sizes = batch.valid.sum(1).tolist()
        places = [(row, t) for row, size in enumerate(sizes) for t in range(size - 1)]
        return batch.x, [(row, t, int(batch.x[row, t + 1])) for row, t in places]
    vocab = model.config.trunk.embedding.vocab
    shown, chosen = objective.of.corrupt(
        batch.x, batch.valid, Hidden(vocab - 1, vocab), torch.Generator().manual_seed(5)
    )
    return shown, [(row, t, int(batch.x[row, t])) for row, t in chosen.nonzero().tolist()]


def at(scores, row, place):
    return scores[row] if place is None else scores[row, place]


def test_the_loss_is_its_equation(taught):
    objective, student, teacher = taught
    batch, temperature = rows(), 2.5
    shown, items = asked(objective, student, batch)
    own, said = student(shown, valid=batch.valid), teacher(shown, valid=batch.valid)
    true = told = backwards = 0.0
    for row, place, target in items:
        s, t = at(own, row, place), at(said, row, place)
        p, q = log_softmax(t / temperature), log_softmax(s / temperature)
        true -= log_softmax(s)[target]
        told += (np.exp(p) * (p - q)).sum()
        backwards += (np.exp(q) * (q - p)).sum()
    found = objective.loss(student.train(), batch, torch.Generator().manual_seed(5))
    assert found.total.item() == pytest.approx(0.7 * true + 0.3 * temperature**2 * told, rel=1e-9)
    # Twins that the line above would tell apart: no T², and the divergence the other way round.
    for twin in (0.7 * true + 0.3 * told, 0.7 * true + 0.3 * temperature**2 * backwards):
        assert found.total.item() != pytest.approx(twin, rel=1e-4)
    assert int(found.count) == len(items)


def test_without_the_teacher_it_is_the_inner_objective(taught):
    objective, student, _ = taught
    plain = Distill(teacher=objective.teacher, of=objective.of, alpha=0.0)
    chance = [torch.Generator().manual_seed(5) for _ in range(3)]
    found = plain.loss(student, rows(), chance[0])
    inner = objective.of.loss(student, rows(), chance[1])
    torch.testing.assert_close(found.total, inner.total)
    assert (int(found.count), int(found.right)) == (int(inner.count), int(inner.right))
    student.eval()
    assert objective.loss(student, rows(), chance[2]).total == inner.total
    assert objective.metric == objective.of.metric


def test_a_student_that_is_its_teacher_has_nothing_to_learn(taught):
    objective, _, teacher = taught
    same = Distill(teacher=objective.teacher, of=objective.of, alpha=1.0, cosine=1.0)
    found = same.loss(teacher.train(), rows(), torch.Generator())
    assert abs(found.total.item()) < 1e-9


def test_the_cosine_counts_real_tokens_once_per_item(taught):
    objective, student, teacher = taught
    batch = rows()
    plain = Distill(teacher=objective.teacher, of=objective.of)
    triple = Distill(teacher=objective.teacher, of=objective.of, cosine=0.4)
    chance = [torch.Generator().manual_seed(5) for _ in range(2)]
    less = plain.loss(student.train(), batch, chance[0])
    more = triple.loss(student, batch, chance[1])
    shown, items = asked(objective, student, batch)
    own = student.trunk.read(shown, valid=batch.valid)[1][batch.valid].detach().numpy()
    given = teacher.trunk.read(shown, valid=batch.valid)[1][batch.valid].detach().numpy()
    cosine = (own * given).sum(-1) / np.linalg.norm(own, axis=-1) / np.linalg.norm(given, axis=-1)
    extra = 0.4 * (1 - cosine).mean() * len(items)
    assert (more.total - less.total).item() == pytest.approx(extra, rel=1e-9)


def test_registers_count_as_real():
    own, given = torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    valid = torch.tensor([[True, True, False], [True, False, False]])
    real = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]).bool()  # two registers in front
    truth = (1 - torch.nn.functional.cosine_similarity(own[real], given[real])).mean()
    torch.testing.assert_close(distance(own, given, valid), truth)


def test_the_teacher_does_not_learn(taught):
    objective, student, _ = taught
    before = load(objective.teacher).state_dict()
    objective.loss(student.train(), rows(), torch.Generator()).total.backward()
    assert all(p.grad is not None for name, p in student.named_parameters() if "head" in name)
    after = objective._teacher(student)
    assert all(torch.equal(t, before[name]) for name, t in after.state_dict().items())
    assert not any(p.requires_grad for p in after.parameters())


def test_the_student_starts_with_every_second_layer(taught):
    objective, student, teacher = taught
    objective.initialise(student)
    truth = prune_layers(teacher, (1, 3))
    batch = rows()
    assert torch.equal(student(batch.x), truth(batch.x))
    fresh = stirred(objective.of, "sfsf", 2)
    Distill(teacher=objective.teacher, of=objective.of, start="fresh").initialise(fresh)
    assert torch.equal(fresh(batch.x), stirred(objective.of, "sfsf", 2)(batch.x))


def test_students_of_another_shape_are_told(taught):
    objective, _, _ = taught
    with pytest.raises(WeftError, match="set start='fresh'"):
        objective.initialise(stirred(objective.of, "sfsf", 2, dim=12))
    with pytest.raises(WeftError, match="4 layers, the student 5"):
        objective.initialise(stirred(objective.of, "sf" * 5, 2))
    wide = Distill(teacher=objective.teacher, of=objective.of, cosine=1.0)
    with pytest.raises(WeftError, match="one width"):
        wide.loss(stirred(objective.of, "sfsf", 2, dim=12).train(), rows(), torch.Generator())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OBJECTIVES.parse("distill"), "needs teacher"),
        (lambda: OBJECTIVES.parse("distill(teacher='a', of=match)"), "classify, causal_lm or"),
        (lambda: Distill(teacher="a", alpha=2.0), "alpha is a share"),
        (lambda: Distill(teacher="a", start="middle"), "start is one of 'teacher', 'fresh'"),
    ],
    ids=["teacher", "of", "alpha", "start"],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises(WeftError, match=says):
        make()


def test_a_missing_teacher_and_missing_classes_are_said(taught):
    objective, student, _ = taught
    lost = Distill(teacher="nowhere", of=objective.of)
    with pytest.raises(WeftError, match="there is no folder"):
        lost.loss(student.train(), rows(), torch.Generator())
    if isinstance(objective.of, Classify):
        with pytest.raises(WeftError, match="no classes"):
            objective.loss(student.train(), Batch(x=rows().x), torch.Generator())


SETTINGS = """
task = "listops(length=24, train=64, valid=32, test=32)"
[model]
layers = {layers}
dim = 16
heads = 2
[training]
steps = 4
batch = 8
device = "cpu"
"""


def test_a_settings_file_trains_a_student(tmp_path):
    from weft.arena.experiment.runs import run_of
    from weft.arena.experiment.settings import read_settings
    from weft.training import train

    (tmp_path / "teacher.toml").write_text(SETTINGS.format(layers=4))
    train(run_of(read_settings(tmp_path / "teacher.toml").experiment), tmp_path / "teacher")
    phase = f"[[phase]]\nobjective = \"distill(teacher='{tmp_path}/teacher/best', cosine=0.1)\"\n"
    (tmp_path / "student.toml").write_text(SETTINGS.format(layers=2) + phase)
    run = run_of(read_settings(tmp_path / "student.toml").experiment)
    assert train(run, tmp_path / "student").status == "done"
    student = load(tmp_path / "student" / "best")
    assert len(student.trunk.stack.layers) == 2


def test_teacher_and_student_share_a_mask_token(tmp_path):
    inner = MaskedLM()
    teacher = stirred(inner, "sf", 1)
    own = dataclasses.replace(teacher.config, mask_id=2).build()
    own.load_state_dict(teacher.state_dict())
    objective = Distill(teacher=str(save(own, tmp_path / "teacher")), of=inner)
    with pytest.raises(WeftError, match=r"one id hides tokens from both; got 2 of the teacher"):
        objective.loss(stirred(inner, "sf", 2).train(), rows(), torch.Generator())
