"""Tests of one's own text: what is converted, what is refused, and how a trained network lets a text go on."""

import json
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from common.config import data_description
from common.export.continuation import Sampling, continued
from common.train.serving import Codec
from llama31_8b import custom_data, indexed, serving, tokens
from llama31_8b.config import Config
from tests.timetotrain.converting import convert, reported

LINES = "".join(f"line {i} of many\n" for i in range(400))


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(LINES)
    return path


def stored(out, name: str) -> list[int]:
    index = indexed.read_index(out / name)
    return indexed.Reader(index, 1 << 20).read([(0, 0, int(index.lengths[0]))]).tolist()


def test_a_file_is_its_bytes_and_its_end_is_held_out(book, tmp_path):
    assert convert("llama31_8b", book, tmp_path / "out", "--no_page") == 0
    train, held_out = (bytes(stored(tmp_path / "out", name)).decode() for name in ("train", "eval"))
    assert train + held_out == LINES and train.endswith("\n")
    assert len(held_out) / len(LINES) == pytest.approx(0.05, abs=0.01)
    description = data_description.read(tmp_path / "out")
    assert description.fields["num_train_examples"] == (len(train) - 1) // 128
    assert description.fields["data.bytes_per_token"] == 1


def test_long_texts_are_made_tokens_in_parts_that_lose_nothing(book, tmp_path, monkeypatch):
    monkeypatch.setattr(custom_data, "_PART", 100)
    convert("llama31_8b", book, tmp_path / "out", "--no_page")
    assert bytes(stored(tmp_path / "out", "train") + stored(tmp_path / "out", "eval")).decode() == LINES


def test_a_folder_and_a_text_of_its_own_to_evaluate_on(book, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(LINES)
    (folder / "b.txt").write_bytes(b"\x89PNG\r\n")
    convert("llama31_8b", folder, tmp_path / "out", "--eval", book, "--no_page", "--max_length=16")
    assert bytes(stored(tmp_path / "out", "train")).decode() == LINES
    assert bytes(stored(tmp_path / "out", "eval")).decode() == LINES
    assert reported(tmp_path / "out")["left_out"]["not text"]["count"] == 1


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"short", [], r"book.txt: \d+ tokens to train, but a sequence needs 129; give more text"),
        (
            LINES.encode(),
            ["--max_length=5000"],
            r"to eval, but a sequence needs 5001; .* smaller --max_length",
        ),
        (b"\x89PNG\r\n", [], "book.txt: no text: a picture"),
        (LINES.encode() + b"\xff", [], r"book.txt: byte \d+ is not UTF-8; save it as UTF-8"),
        (LINES.encode(), ["--eval_part=1.5"], "--eval_part=1.5: must lie between 0 and 1"),
    ],
    ids=["short", "long window", "picture", "encoding", "part"],
)
def test_a_text_that_does_not_fit_is_refused_in_one_line(content, words, message, book, tmp_path, capsys):
    book.write_bytes(content)
    assert convert("llama31_8b", book, tmp_path / "out", *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line) and not (tmp_path / "out").exists()


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer.json of words whose template adds a BOS, as Llama 3.1's does."""
    library = pytest.importorskip("tokenizers")
    words = {"<bos>": 0, "line": 1, "of": 2, "many": 3, "?": 4}
    content = library.Tokenizer(library.models.WordLevel(words, unk_token="?"))
    content.pre_tokenizer = library.pre_tokenizers.Whitespace()
    content.post_processor = library.processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    content.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


@pytest.mark.parametrize("names", ["wiki.{}.tokens", "{}/0.txt"])
@pytest.mark.parametrize("other", ["test", "", "notes"])
def test_files_that_a_split_s_words_name_are_the_split(names, other, tmp_path):
    for part in filter(None, ("train", "valid", other)):
        path = tmp_path / "set" / names.format(part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{part}\n" + "".join(f"{part} {LINES}"))
    (tmp_path / "set/README.md").write_text("About these texts")
    assert not any(map(custom_data._ABOUT.fullmatch, ("License to Kill.txt", "copying-machine.txt")))
    assert convert("llama31_8b", tmp_path / "set", tmp_path / "out", "--no_page") == 0
    train, held_out = (bytes(stored(tmp_path / "out", name)).decode() for name in ("train", "eval"))
    is_split, report = other != "notes", reported(tmp_path / "out")
    assert (train.startswith("train") and held_out.startswith("valid")) == is_split
    assert any("may be a split" in what for what in report["suspicious"]) != is_split
    assert [one["example"].rpartition("/")[2] for one in report["skipped"].values()][0] == "README.md"


def test_a_license_is_left_out_and_a_table_and_lines_on_both_sides_are_said(book, tmp_path):
    of = "OF THE PROJECT GUTENBERG EBOOK X ***"
    book.write_text(f"Hello\n*** START {of}\n{LINES}*** END {of}\nYou may charge a fee\n" * 2)
    table = book.rename(tmp_path / "book.csv")
    assert convert("llama31_8b", table, tmp_path / "out", "--no_page", "--eval", table) == 0
    assert bytes(stored(tmp_path / "out", "train")).decode() == f"\n{LINES}" * 2
    report = reported(tmp_path / "out")
    assert "Project Gutenberg's preface and license, left out" in report["changed"]
    assert "a file with markup, trained on as it is" in report["suspicious"]
    assert "the same lines to train and to evaluate on" not in report["suspicious"]
    table.write_text(f"{LINES}\0*** START {of}\na book\n*** END {of}\n")
    assert convert("llama31_8b", table, tmp_path / "inside", "--no_page", "--eval", table) == 0
    assert bytes(stored(tmp_path / "inside", "train")).decode().startswith(f"{LINES}***")
    report = reported(tmp_path / "inside")
    assert list(report["changed"]) == ["a NUL character, removed"] and len(report["suspicious"]) == 3
    table.write_text("".join(f"a line that is {n}\xa0long \u00c3\u00bc enough\n" for n in range(400)))
    assert convert("llama31_8b", table, tmp_path / "same", "--no_page", "--eval", table) == 0
    warnings = " ".join(reported(tmp_path / "same")["suspicious"])
    assert "the same lines to train and to evaluate on" in warnings and "text decoded twice" in warnings


def test_markup_is_said(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "line"}\n' * 400)
    assert convert("llama31_8b", tmp_path / "a.jsonl", tmp_path / "out", "--no_page") == 0
    assert list(reported(tmp_path / "out")["suspicious"]) == ["a file with markup, trained on as it is"]


def test_a_tokenizers_bos_is_left_out_and_said(tokenizer, book, tmp_path):
    convert("llama31_8b", book, tmp_path / "out", "--no_page", f"--tokenizer={tokenizer}", "--max_length=16")
    assert stored(tmp_path / "out", "train")[:8] == [1, 4, 2, 3] * 2
    changed = reported(tmp_path / "out")["changed"]
    (only,) = changed.values()
    assert only["example"] == "<bos>"
    fields = data_description.read(tmp_path / "out").fields
    assert (fields["vocab_size"], fields["data.tokenizer"]) == (5, "tokenizer.json")
    assert fields["data.bytes_per_token"] == pytest.approx(len("line 399 of many\n") / 4, rel=0.05)
    read = serving.codec(Config(), tmp_path / "out")
    assert read.encode("many of line") == [3, 2, 1] and read.decode([3, 2]) == "many of"


@pytest.mark.parametrize("content", ["not JSON", json.dumps({"model": 1})])
def test_a_file_that_is_not_a_tokenizer_is_refused(content, book, tmp_path, capsys):
    pytest.importorskip("tokenizers")
    (tmp_path / "bad.json").write_text(content)
    assert convert("llama31_8b", book, tmp_path / "out", f"--tokenizer={tmp_path / 'bad.json'}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "bad.json: is not a tokenizer.json" in line


def test_bytes_decode_to_text_whatever_they_are():
    assert tokens.Bytes().decode(tokens.Bytes().encode("naïve 日")) == "naïve 日"
    assert tokens.Bytes().decode([104, 255, 300]) == "h\ufffd"


# --- A network whose next token is the last one plus one, or any of two, with equal scores.
READ = tokens.Bytes()


def scores(rows: np.ndarray, choices: int = 1) -> dict[str, np.ndarray]:
    values = np.full([len(rows), 256], -30.0, np.float32)
    for line, row in zip(values, rows):
        last = row[row >= 0][-1]
        line[[last + n for n in range(1, choices + 1)]] = 0
    return {"scores": values}


def test_the_most_probable_token_follows():
    codec = Codec(READ.encode, READ.decode, 4)
    answers = continued(scores, codec, ["ab", "a long text x", ""], Sampling(tokens=2))
    assert answers[:2] == [{"continuation": "cd"}, {"continuation": "yz"}]
    assert "no token" in answers[2]["error"]


def test_draws_depend_on_seed_and_text_alone():
    codec = Codec(READ.encode, READ.decode, 8)

    def texts_of(texts: list[str], seed: int) -> list[str]:
        how = Sampling(tokens=12, temperature=1.0, seed=seed)
        return [one["continuation"] for one in continued(lambda rows: scores(rows, 2), codec, texts, how)]

    both = texts_of(["a", "b"], 1)
    assert (
        both == texts_of(["a", "b"], 1) and both[1:] == texts_of(["b"], 1) and both != texts_of(["a", "b"], 2)
    )
    steps = np.diff([ord(c) for seed in range(40) for c in "a" + texts_of(["a"], seed)[0]])
    ones = np.mean(steps[steps > 0] == 1)
    assert 0.4 < ones < 0.6


def test_the_graph_scores_the_token_after_the_last_one():
    """The network sees the text alone: padding and the batch's other texts change nothing."""

    class Sums:
        def features(self, ids: tf.Tensor) -> tf.Tensor:
            return tf.cumsum(tf.one_hot(ids, 6), 1)

        def head(self, x: tf.Tensor) -> tf.Tensor:
            return 2 * x

    task = types.SimpleNamespace(config=Config(sequence_length=5))
    served = serving.serving(task, Sums(), ())
    actual = served.function(tf.constant([[3, 3, -1], [1, 2, 3]]))["scores"]
    counts = np.array([[0, 0, 0, 2, 0, 0], [0, 1, 1, 1, 0, 0]], np.float32)
    np.testing.assert_allclose(actual, tf.nn.log_softmax(2 * counts), rtol=1e-6)
