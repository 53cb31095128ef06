"""Digests of generated data, for tests that compare processes and versions."""

from hashlib import sha256

from weft.arena.tasks import SPLITS, TASKS

SPECS = (
    "listops(length=64, depth=5, arguments=4, train=200, valid=50, test=100)",
    "key_value(pairs=8, train=100, valid=20, test=30)",
    "key_value_uuid(pairs=3, train=20, valid=3, test=4)",
)


def digest(spec):
    """One number for all tokens and labels of a task."""
    found = sha256()
    for split in SPLITS:
        examples = TASKS.parse(spec).load(split)
        for array in (examples.rows.tokens, examples.rows.lengths, examples.labels):
            found.update(array.astype("<i8").tobytes())
    return found.hexdigest()[:16]


if __name__ == "__main__":
    print("\n".join(map(digest, SPECS)))
