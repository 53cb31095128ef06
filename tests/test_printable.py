"""Text from elsewhere never commands the terminal."""

import pytest

from weft.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, und schön ✓ 数 \N{ZERO WIDTH JOINER}", None),
        ("two\nlines\tand a tab", None),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b2J \x7f \r", r"\x9b2J \x7f \r"),
        ("abc\u202eexe.txt", r"abc\u202eexe.txt"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_control_characters_become_escapes(text, shown):
    assert printable(text) == (text if shown is None else shown)
