"""Tests subwords, BLEU and parallel text."""

import errno
import gzip
import os
import pathlib
import resource
import tarfile

import pytest

from common.errors import UserError
from common.text import bleu, parallel, subwords

pytest.importorskip("official.nlp.metrics.bleu", reason="tf-models-official absent")
SHARED = pathlib.Path(os.environ.get("SHARED_DATA", pathlib.Path(__file__).parents[3] / "../shared/data"))
LINES = [
    "The cat, 3.5 kg, sat\\on_the mat.",
    "Zwei Männer – groß & klein – stehen.",
    "  two  spaces ",
    "日本",
]


@pytest.fixture
def vocabulary(tmp_path):
    text = tmp_path / "text"
    text.write_text("\n".join(LINES * 3) + "\n")
    return subwords.build(tmp_path / "vocab", [text], 60)


def test_text_comes_back(vocabulary):
    for line in LINES:
        tokens = vocabulary.encode(line)
        assert tokens[-1] == subwords.EOS and max(tokens) < len(vocabulary)
        assert vocabulary.decode(tokens) == line == vocabulary.decode([*tokens, 0, 0, 5])
    assert vocabulary.decode([]) == vocabulary.decode([subwords.EOS]) == ""


def test_characters_unseen_come_back(vocabulary):
    assert vocabulary.decode(vocabulary.encode("Ωmega ☃ 9")) == "Ωmega ☃ 9"


def test_a_vocabulary_is_the_same_when_read_again(vocabulary):
    again = subwords.Subwords(vocabulary.path)
    assert len(again) == len(vocabulary)
    assert [again.encode(x) for x in LINES] == [vocabulary.encode(x) for x in LINES]


def test_every_line_of_newstest_comes_back(tmp_path):
    """With MLPerf's 33,708 subwords the longest source has 97 tokens, the length that decoding is sized for."""
    archive = SHARED / "text.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is absent (SHARED_DATA)")
    folder = "text/wmt14_ende"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, [m for m in tar if m.name.startswith(folder)], filter="data")
    words = subwords.Subwords(tmp_path / folder / "vocab.translate_ende_wmt32k.32768.subwords")
    assert len(words) == 33708
    pairs = list(
        parallel.read_pairs(tmp_path / folder / "newstest2014.en", tmp_path / folder / "newstest2014.de")
    )
    assert len(pairs) == 3003
    encoded = [[words.encode(text) for text in pair] for pair in pairs]
    assert [tuple(map(words.decode, both)) for both in encoded] == pairs
    assert max(len(source) for source, _ in encoded) == 97


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"'<pad>_'\n'<EOS>_'\nthe_\n", "line 3 is no quoted subword: 'the_'"),
        (b"'<pad>_'\n'<EOS>_'\n'a_'\n'b_'\n'a_'\n", "line 5 repeats line 3"),
        (b"'a_'\n'<EOS>_'\n", "line 1 and 2 must be"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
    ],
)
def test_a_bad_vocabulary_is_one_line(tmp_path, content, message):
    (tmp_path / "vocab").write_bytes(content)
    with pytest.raises(UserError, match=message):
        subwords.Subwords(tmp_path / "vocab")


def test_a_vocabulary_of_another_network_is_one_line(vocabulary, tmp_path):
    with pytest.raises(UserError, match=r"vocab has \d+ tokens, config.vocabulary_size is 7"):
        subwords.check_size(vocabulary, 7)
    with pytest.raises(UserError, match="cannot read .*missing"):
        subwords.Subwords(tmp_path / "missing")
    with pytest.raises(UserError, match="exists; remove it"):
        subwords.build(vocabulary.path, [], 10)


def test_a_vocabulary_that_does_not_fit_on_the_disk_is_one_line_and_not_there(
    vocabulary, tmp_path, monkeypatch
):
    """A partial file would be read as a vocabulary, of another network or with other tokens."""
    before = pathlib.Path.write_text

    def cut(path, text, **options):
        before(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "write_text", cut)
    with pytest.raises(
        UserError, match=f"cannot write {tmp_path / 'new'}: No space left on device; free some"
    ):
        subwords.build(tmp_path / "new", [tmp_path / "text"], 60)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "vocab"}


def test_a_disk_that_is_full_for_tensorflow_is_one_line(vocabulary, tmp_path):
    """The tokenizer writes through TensorFlow, whose errors are not OSErrors."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(UserError, match=f"cannot write {tmp_path / 'new'}: .*; free some"):
            subwords.build(tmp_path / "new", [tmp_path / "text"], 60)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {path.name for path in tmp_path.iterdir()} == {"text", "vocab"}


REFERENCES = [
    "Two men, both in blue, are standing near the 3.5 m stove.",
    "A little girl climbs into a wooden playhouse (it is hers)!",
    "Several men in hard hats operate a giant pulley system.",
]
HYPOTHESES = [
    "two men, both in Blue, stand near the 3.5 m stove.",
    "A little girl climbs into the wooden playhouse (it is hers)!",
    "Some men in hard hats are operating a giant pulley system.",
]


def test_t2t_bleu_is_sacrebleu_s_with_international_tokens():
    """Both use mteval-v14's tokenizer; corpus sums of n-grams are equal where every order has a match."""
    for lowercase in (True, False):
        ours = bleu.t2t(REFERENCES, HYPOTHESES, lowercase)
        theirs = bleu.sacre(REFERENCES, HYPOTHESES, lowercase, "intl")
        assert ours == pytest.approx(theirs, rel=1e-4) and 50 < ours < 90
    assert bleu.t2t(REFERENCES, HYPOTHESES, True) > bleu.t2t(REFERENCES, HYPOTHESES, False)


def test_bleu_at_its_ends():
    assert bleu.t2t(REFERENCES, REFERENCES) == pytest.approx(100) == bleu.sacre(REFERENCES, REFERENCES)
    assert bleu.t2t(REFERENCES, ["", "", ""]) == bleu.sacre(REFERENCES, ["", "", ""]) == 0


@pytest.mark.parametrize("hypotheses", [[], ["one"]])
def test_bleu_of_too_few_is_an_error(hypotheses):
    for score in (bleu.t2t, bleu.sacre):
        with pytest.raises(ValueError, match=f"{len(hypotheses)} translations for 3 references"):
            score(REFERENCES, hypotheses)


def files(tmp_path, source: bytes, target: bytes):
    paths = tmp_path / "a.en", tmp_path / "a.de"
    for path, content in zip(paths, (source, target)):
        path.write_bytes(content)
    return paths


def test_only_line_feeds_end_lines(tmp_path):
    pairs = list(parallel.read_pairs(*files(tmp_path, "a\u2028b\x0cc\r\nd".encode(), b"x\ny\n")))
    assert pairs == [("a\u2028b\x0cc", "x"), ("d", "y")]


def test_gzip_is_read(tmp_path):
    for side in ("en", "de"):
        with gzip.open(tmp_path / f"a.{side}.gz", "wt") as file:
            file.write(f"1 {side}\n2 {side}\n")
    pairs = list(parallel.read_pairs(tmp_path / "a.en.gz", tmp_path / "a.de.gz"))
    assert pairs == [("1 en", "1 de"), ("2 en", "2 de")]


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot read .*nowhere"):
        list(parallel.read_pairs(tmp_path / "nowhere", tmp_path / "nowhere"))


def test_damaged_gzip_is_one_line(tmp_path):
    packed = gzip.compress(b"".join(b"%d\n" % (i * i) for i in range(1000)))
    for side in ("en", "de"):
        # The header is intact; the data are truncated, or some bytes are overwritten.
        spoilt = packed[:-40] if side == "de" else packed[:20] + b"\xff" * 40 + packed[60:]
        (tmp_path / f"a.{side}.gz").write_bytes(spoilt)
        with pytest.raises(UserError, match="get a good copy"):
            list(parallel.read_pairs(tmp_path / f"a.{side}.gz", tmp_path / f"a.{side}.gz"))


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\n", b"x\n", "a.de ends after line 1, .*a.en goes on"),
        (b"a\n", b"x\ny\n", "a.en ends after line 1, .*a.de goes on"),
        (b"a\n \n", b"x\ny\n", "a.en: line 2 is empty"),
        (b"a\nb\n", b"x\n\xff\n", "a.de: line 2 is not UTF-8"),
    ],
)
def test_bad_text_is_one_line_with_file_and_number(tmp_path, source, target, message):
    with pytest.raises(UserError, match=message):
        list(parallel.read_pairs(*files(tmp_path, source, target)))


def test_training_text_can_be_cleaned_and_the_dropped_counted(tmp_path):
    dropped = parallel.Dropped()
    paths = files(tmp_path, b"a\n\nc\nd\n", b"w\nx\n\xff\nz\n")
    assert list(parallel.read_pairs(*paths, dropped)) == [("a", "w"), ("d", "z")]
    assert dropped == parallel.Dropped(empty=1, not_utf8=1)
    with pytest.raises(UserError, match="ends after line 1"):
        list(parallel.read_pairs(*files(tmp_path, b"a\nb\n", b"x\n"), parallel.Dropped()))
