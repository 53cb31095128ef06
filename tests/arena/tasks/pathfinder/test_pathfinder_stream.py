"""Images drawn while training: a function of the step, in every symmetry, in the order of tiles."""

import dataclasses

import numpy as np
import pytest

from weft.arena.experiment.runs import run_of
from weft.arena.experiment.settings import experiment
from weft.arena.tasks import TASKS
from weft.arena.tasks.pathfinder.images import Drawing, draw
from weft.arena.tasks.pathfinder.stream import FIRST, Drawn, in_tiles, softened, turned
from weft.errors import WeftError

EASY = Drawing.of(size=32, dashes=2)
PLAIN = Drawn(
    drawing=EASY,
    easier=None,
    batch_size=6,
    seed=3,
    tile=None,
    symmetries=False,
    shrink=1,
    soften=1,
    threads=1,
)


def test_batches_are_the_images_of_the_generator_one_after_another():
    images, labels = draw(EASY, 3, FIRST, 18)
    for step in (2, 0, 1):
        batch = PLAIN.batch(step)
        own = slice(6 * step, 6 * step + 6)
        assert np.array_equal(batch.x.numpy(), images[own].reshape(6, -1))
        assert np.array_equal(batch.y.numpy(), labels[own])


def test_a_third_is_easier():
    other = Drawing.of(size=32, dashes=3)
    batch = dataclasses.replace(PLAIN, drawing=other, easier=EASY).batch(1)
    hard, _ = draw(other, 3, FIRST + 6, 4)
    easy, _ = draw(EASY, 3, FIRST + 6, 2)
    assert np.array_equal(batch.x.numpy(), np.concatenate((hard, easy)).reshape(6, -1))


def test_the_eight_symmetries():
    image = np.arange(9).reshape(1, 3, 3)
    found = {turned(image, np.array([kind])).tobytes() for kind in range(8)}
    rotations = [np.rot90(image[0], turns) for turns in range(4)]
    wanted = [*rotations, *(each.T for each in rotations)]
    assert found == {np.ascontiguousarray(each[None]).tobytes() for each in wanted}
    assert len(found) == 8


def test_symmetries_change_images_and_not_labels():
    source = dataclasses.replace(PLAIN, batch_size=40, symmetries=True)
    plain = dataclasses.replace(source, symmetries=False)
    one, other = source.batch(4), plain.batch(4)
    assert np.array_equal(one.y.numpy(), other.y.numpy())
    same = [np.array_equal(a, b) for a, b in zip(one.x.numpy(), other.x.numpy(), strict=True)]
    assert 0 < sum(same) < 20
    for a, b in zip(one.x.numpy(), other.x.numpy(), strict=True):
        assert np.array_equal(np.sort(a), np.sort(b))
    assert np.array_equal(source.batch(4).x, one.x), "the same again for the same step"


def test_shrunk_images_are_means_of_squares():
    source = dataclasses.replace(PLAIN, shrink=2)
    large, small = (each.batch(1).x.numpy().reshape(6, -1) for each in (PLAIN, source))
    large = large.reshape(6, 32, 32)
    corners = [large[:, y::2, x::2] for y in (0, 1) for x in (0, 1)]
    assert np.abs(small.reshape(6, 16, 16) - sum(corners) / 4).max() <= 0.5
    assert np.array_equal(source.batch(1).y, PLAIN.batch(1).y)


def test_a_task_shrinks_every_split():
    task = TASKS.parse("pathfinder(size=64, shrink=2, dashes=2, train=0, valid=2, test=2)")
    whole = TASKS.parse("pathx(dashes=2, train=0, valid=2, test=2)")
    assert task.length == 64 * 64
    for rows in zip(task.load("valid").rows, whole.load("valid").rows, strict=True):
        small, large = (row.reshape(side, side) for row, side in zip(rows, (64, 128), strict=True))
        corners = [large[y::2, x::2].astype(float) for y in (0, 1) for x in (0, 1)]
        assert np.abs(small - sum(corners) / 4).max() <= 0.5
    assert task.stream(3).batch(0).x.shape == (3, 64 * 64)
    with pytest.raises(WeftError, match="shrink=0"):
        TASKS.parse("pathfinder(shrink=0)")


def test_softened_images_lie_between_themselves_and_their_means():
    images, _ = draw(EASY, 3, FIRST, 3)
    found = softened(images, 2, np.array([0.0, 0.5, 1.0], dtype=np.float32)).astype(float)
    corners = [images[:, y::2, x::2].astype(float) for y in (0, 1) for x in (0, 1)]
    means = np.kron(sum(corners) / 4, np.ones((1, 2, 2)))
    for share, one, sharp, mean in zip((0, 0.5, 1), found, images, means, strict=True):
        assert np.abs(one - (1 - share) * sharp - share * mean).max() <= 1  # rounded twice
    assert np.abs(found[2] - images[2]).max() > 20, "the means are other images"


def test_each_image_of_a_step_is_softened_by_a_share_of_its_own():
    source = dataclasses.replace(PLAIN, soften=2)
    soft, sharp = source.batch(1), PLAIN.batch(1)
    assert np.array_equal(soft.y, sharp.y)
    assert np.array_equal(soft.x, source.batch(1).x), "the same again for the same step"
    gone = [1 - a.float().var() / b.float().var() for a, b in zip(soft.x, sharp.x, strict=True)]
    assert max(gone) - min(gone) > 0.1
    with pytest.raises(WeftError, match="soften=3"):
        TASKS.parse("pathfinder(soften=3, train=0)")
    with pytest.raises(WeftError, match="train=0"):
        TASKS.parse("pathfinder(soften=2)")


def test_a_source_says_what_it_draws():
    """A run resumes with the images it began with, or is refused: the words tell them apart."""
    other = Drawing.of(size=32, dashes=3)
    changes = [{"easier": other}, {"symmetries": True}, {"shrink": 2}, {"soften": 2}, {"seed": 4}]
    texts = [str(dataclasses.replace(PLAIN, **change)) for change in changes]
    assert len({str(PLAIN), *texts}) == len(changes) + 1, texts
    own, large = (Drawing.of(size=size, dashes=2) for size in (64, 128))
    drawn = (
        dataclasses.replace(PLAIN, drawing=own),
        dataclasses.replace(PLAIN, drawing=large, shrink=2),
    )
    assert str(drawn[0]) != str(drawn[1]), "both 64×64"


def test_tiles_stand_one_after_another():
    image = np.arange(64).reshape(1, 8, 8)
    rows = in_tiles(image, (2, 4))[0]
    assert rows[:8].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]
    assert rows[8:16].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    assert sorted(rows) == list(range(64))
    assert np.array_equal(in_tiles(image, None)[0], np.arange(64))


def test_the_task_shows_the_same_pictures_in_either_order():
    plain = TASKS.parse("pathfinder(dashes=2, train=0, valid=3, test=3)")
    tiled = TASKS.parse("pathfinder(dashes=2, train=0, valid=3, test=3, tile=[8, 16])")
    for i in range(3):
        rows = plain.load("valid").rows[i], tiled.load("valid").rows[i]
        assert not np.array_equal(*rows)
        assert plain.show(rows[0]) == tiled.show(rows[1])
    assert plain.stream(4) is not None
    assert TASKS.parse("pathfinder(train=5, valid=1, test=1)").stream(4) is None


@pytest.mark.parametrize("wrong", ["train=5, easier=2", "train=5, symmetries=true"])
def test_settings_of_the_stream_need_a_stream(wrong):
    with pytest.raises(WeftError, match="train=0"):
        TASKS.parse(f"pathfinder({wrong})")


def test_phases_change_size_pattern_and_positions():
    tables = {
        "task": "pathfinder(size=64, dashes=2, train=0, valid=2, test=2, tile=[8, 16])",
        "mixer": 'pattern(reads="blocked(window2d(4, 2), 128)")',
        "model": {"layers": 1, "dim": 16, "heads": 1, "rbf_levels": 4, "pool": "attention",
                  "embedding": {"positions": "none"},
                  "frame": {"positions": "rope2d(width=64, tile=[8, 16])"}},
        "training": {"steps": 1, "batch": 2, "device": "cpu"},
        "phase": [
            {"task": {"size": 32}, "mixer": 'pattern(reads="full")',
             "model": {"frame": {"positions": "rope2d(width=32, tile=[8, 16])"}}},
            {"task": {"easier": 2}},
        ],
    }  # fmt: skip
    first, second = run_of(experiment(tables)).stages
    for stage, size in ((first, 32), (second, 64)):
        batch = stage.source.batch(0)
        assert batch.x.shape == (2, size * size)
        assert stage.model.trunk.stack.frame.positions.width == size
        assert stage.model.build()(batch.x).shape == (2, 2)
