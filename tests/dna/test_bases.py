"""Bases, k-mers and the other strand, against a plain computation on letters."""

import gzip

import numpy as np
import pytest

from weft.dna.bases import UNKNOWN, Kmers, bases, letters_of
from weft.dna.fasta import is_fasta, read_fasta
from weft.errors import WeftError

PAIR = str.maketrans("ACGTN", "TGCAN")


def sequence(n=41, seed=0, letters="ACGTN"):
    return "".join(np.random.default_rng(seed).choice(list(letters), n))


def plain(letters, k, step):
    """The k-mers of letters, as numbers to the base 4."""
    found = []
    for i in range(0, len(letters) - k + 1, step):
        word = letters[i : i + k]
        found.append(4**k if "N" in word else int("".join(map(str, map("ACGT".index, word))), 4))
    return found


@pytest.mark.parametrize(("k", "step"), [(1, 1), (3, 1), (3, 3), (4, 2), (6, 6)])
def test_tokens_are_words_of_bases(k, step):
    letters, kmers = sequence(), Kmers(k=k, step=step)
    ids = kmers.tokens(bases(letters, "s"))
    assert ids.tolist() == plain(letters, k, step)
    assert len(ids) == kmers.count(len(letters))
    assert ids.max() < kmers.vocab == 4**k + 1
    clean = sequence(letters="ACGT")
    shown = letters_of(kmers.bases(kmers.tokens(bases(clean, "s"))))
    assert clean.startswith(shown)
    assert len(shown) == (kmers.count(41) - 1) * step + k


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_other_strand_is_that_of_the_letters(k):
    letters, kmers = sequence(), Kmers(k=k)
    found = kmers.reverse_complement(kmers.tokens(bases(letters, "s")))
    other = letters[::-1].translate(PAIR)
    assert found.tolist() == plain(other, k, 1)
    assert (kmers.reverse_complement(found) == kmers.tokens(bases(letters, "s"))).all()


def test_letters():
    assert bases("acgtuRyN", "s").tolist() == [0, 1, 2, 3, 3, UNKNOWN, UNKNOWN, UNKNOWN]
    with pytest.raises(WeftError, match=r"row 3: 'X' at base 4 is not a base"):
        bases("ACGXT", "row 3")
    with pytest.raises(WeftError, match="row 3 has no bases"):
        bases("", "row 3")
    with pytest.raises(WeftError, match="k is 1 to 8 and step 1 to k"):
        Kmers(k=2, step=3)


def test_records_of_a_file(tmp_path):
    text = ">one first\nACGT\nAC GT\n\n>two\nTTTT\n"
    (tmp_path / "a.fa").write_text(text)
    with gzip.open(tmp_path / "a.fasta.gz", "wt") as file:
        file.write(text)
    for name in ("a.fa", "a.fasta.gz"):
        assert is_fasta(tmp_path / name)
        found = [(each.name, each.sequence) for each in read_fasta(tmp_path / name)]
        assert found == [("one first", "ACGTACGT"), ("two", "TTTT")]
    assert not is_fasta(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (">one\nAC\n>two\n>three\nAC\n", r"line 3 \(>two\): the record has no sequence"),
        ("ACGT\n", "line 1: a FASTA file begins with a name"),
        ("", "holds no records"),
    ],
)
def test_bad_files_are_said_with_the_record(tmp_path, text, message):
    path = tmp_path / "a.fa"
    path.write_text(text)
    with pytest.raises(WeftError, match=message):
        list(read_fasta(path))


def test_a_broken_gz_and_a_missing_file(tmp_path):
    (tmp_path / "a.fa.gz").write_bytes(gzip.compress(b">one\nACGT\n")[:-9])
    with pytest.raises(WeftError, match="cannot be read as FASTA"):
        list(read_fasta(tmp_path / "a.fa.gz"))
    with pytest.raises(WeftError, match="there is no FASTA file"):
        list(read_fasta(tmp_path / "b.fa"))
