"""Tests byte-pair encoding: round trips, files, and equality with subword-nmt and Moses."""

import collections
import io
import os
import pathlib
import tarfile

import pytest

from common.errors import UserError
from common.text import bpe, parallel

apply_bpe = pytest.importorskip("subword_nmt.apply_bpe", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")
SHARED = pathlib.Path(os.environ.get("SHARED_DATA", pathlib.Path(__file__).parents[3] / "../shared/data"))
LINES = ["Two men, both in blue, stood near the 3.5 m stove.", "The blue stove isn't new (it's old)!"]


def counts(lines: list[str], language: str = "en") -> collections.Counter:
    return collections.Counter(t for line in lines for t in bpe.Moses(language).tokens(line))


def learn_encoding(folder: pathlib.Path, lines: list[str], merges: int) -> bpe.Bpe:
    word_counts = counts(lines)
    codes = bpe.learn(word_counts, merges)
    (folder / "codes").write_text("\n".join(codes) + "\n")
    (folder / "vocab").write_text("\n".join(bpe.vocabulary_of(word_counts, codes)) + "\n")
    return bpe.Bpe(folder / "codes", folder / "vocab")


@pytest.mark.parametrize("merges", [1, 10, 100])
def test_text_comes_back(tmp_path, merges):
    encoding = learn_encoding(tmp_path, LINES * 3, merges)
    for line in LINES:
        numbers = encoding.encode(line, "en")
        assert min(numbers) > bpe.EOS and max(numbers) < len(encoding)
        assert encoding.decode([*numbers, bpe.EOS, 5], "en") == line
    assert encoding.decode([], "en") == encoding.decode([bpe.EOS, 4], "en") == ""


def test_tokens_are_those_of_the_tools(tmp_path):
    """Tokens and vocabulary equal those of subword-nmt's command line on Moses's tokens."""
    encoding = learn_encoding(tmp_path, LINES * 3, 30)
    tool = apply_bpe.BPE(io.StringIO((tmp_path / "codes").read_text()))
    words = (tmp_path / "vocab").read_text().splitlines()
    occurring: collections.Counter = collections.Counter()
    for line in LINES * 3:
        plain = tool.process_line(" ".join(bpe.Moses("en").tokens(line))).split()
        assert [words[n] for n in encoding.encode(line, "en")] == plain
        occurring.update(plain)
    assert words[:3] == ["<unk>", "<s>", "</s>"]
    assert words[3:] == sorted(occurring, key=lambda w: (-occurring[w], w))


def test_merges_are_the_most_frequent_pairs():
    codes = bpe.learn({"abab": 5, "abc": 3, "xyz": 2}, 1)
    assert codes[0].startswith("#version:") and codes[1] == "a b"


def test_characters_unseen_are_unknown(tmp_path):
    encoding = learn_encoding(tmp_path, LINES, 10)
    assert bpe.UNK in encoding.encode("ΩΨ", "en")
    assert bpe.UNK not in encoding.encode("stove", "en")


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        (b"<s>\n</s>\na\n", "vocab: its first lines must be <unk>, <s>, </s>"),
        (b"<unk>\n<s>\n</s>\na b\n", "vocab: line 4 is no token: 'a b'"),
        (b"<unk>\n<s>\n</s>\na\nb\na\n", "vocab: line 6 repeats line 4, a"),
        (b"<unk>\n\xff\n", "vocab: byte 6 is not UTF-8"),
    ],
)
def test_a_bad_vocabulary_is_one_line(tmp_path, vocabulary, message):
    (tmp_path / "codes").write_text("#version: 0.2\na b\n")
    (tmp_path / "vocab").write_bytes(vocabulary)
    with pytest.raises(UserError, match=message):
        bpe.Bpe(tmp_path / "codes", tmp_path / "vocab")


def test_bad_merges_are_one_line(tmp_path):
    (tmp_path / "codes").write_text("#version: 0.2\na b\nabc\n")
    with pytest.raises(UserError, match="codes: line 3 is not a merge: 'abc'"):
        bpe.Bpe(tmp_path / "codes", tmp_path / "vocab")
    with pytest.raises(UserError, match="cannot read .*nowhere"):
        bpe.Bpe(tmp_path / "nowhere", tmp_path / "vocab")
    with pytest.raises(UserError, match="too little text for a byte-pair encoding"):
        bpe.learn({"a": 3}, 5)


def test_lines_of_newstest_come_back_but_for_moses_s_own_losses(tmp_path):
    """200 German lines of newstest2014; only losses of Moses's tokenizer remain."""
    archive = SHARED / "text.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is absent (SHARED_DATA)")
    folder = "text/wmt14_ende"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, [m for m in tar if m.name.startswith(f"{folder}/newstest")], filter="data")
    files = [tmp_path / folder / f"newstest2014.{lang}" for lang in ("en", "de")]
    lines = [target for _, target in parallel.read_pairs(*files)][:200]
    moses, word_counts = bpe.Moses("de"), counts(lines, "de")
    codes = bpe.learn(word_counts, 300)
    for name, content in (("codes", codes), ("vocab", bpe.vocabulary_of(word_counts, codes))):
        (tmp_path / name).write_text("\n".join(content) + "\n")
    encoding = bpe.Bpe(tmp_path / "codes", tmp_path / "vocab")
    back = [encoding.decode(encoding.encode(line, "de"), "de") for line in lines]
    assert back == [moses.text(moses.tokens(line)) for line in lines]
    assert sum(a == b for a, b in zip(back, lines)) > 150
    assert io.StringIO("\n".join(codes)).readline().startswith("#version")
