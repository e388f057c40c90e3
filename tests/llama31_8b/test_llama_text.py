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
    train, held = (bytes(stored(tmp_path / "out", name)).decode() for name in ("train", "eval"))
    assert train + held == LINES and train.endswith("\n")
    assert len(held) / len(LINES) == pytest.approx(0.05, abs=0.01)
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
    made = library.Tokenizer(library.models.WordLevel(words, unk_token="?"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.post_processor = library.processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 0)])
    made.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


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
    found = np.full([len(rows), 256], -30.0, np.float32)
    for line, row in zip(found, rows):
        last = row[row >= 0][-1]
        line[[last + n for n in range(1, choices + 1)]] = 0
    return {"scores": found}


def test_the_most_probable_token_follows():
    codec = Codec(READ.encode, READ.decode, 4)
    found = continued(scores, codec, ["ab", "a long text x", ""], Sampling(tokens=2))
    assert found[:2] == [{"continuation": "cd"}, {"continuation": "yz"}]
    assert "no token" in found[2]["error"]


def test_draws_depend_on_seed_and_text_alone():
    codec = Codec(READ.encode, READ.decode, 8)

    def drawn(texts: list[str], seed: int) -> list[str]:
        how = Sampling(tokens=12, temperature=1.0, seed=seed)
        return [one["continuation"] for one in continued(lambda rows: scores(rows, 2), codec, texts, how)]

    both = drawn(["a", "b"], 1)
    assert both == drawn(["a", "b"], 1) and both[1:] == drawn(["b"], 1) and both != drawn(["a", "b"], 2)
    steps = np.diff([ord(c) for seed in range(40) for c in "a" + drawn(["a"], seed)[0]])
    ones = np.mean(steps[steps > 0] == 1)
    assert 0.4 < ones < 0.6


def test_the_graph_scores_the_token_after_the_last_one():
    """The network sees the text alone: padding and the batch's other texts change nothing."""

    class Sums:
        def features(self, given: tf.Tensor) -> tf.Tensor:
            return tf.cumsum(tf.one_hot(given, 6), 1)

        def head(self, x: tf.Tensor) -> tf.Tensor:
            return 2 * x

    task = types.SimpleNamespace(config=Config(sequence_length=5))
    served = serving.serving(task, Sums(), ())
    found = served.function(tf.constant([[3, 3, -1], [1, 2, 3]]))["scores"]
    counts = np.array([[0, 0, 0, 2, 0, 0], [0, 1, 1, 1, 0, 0]], np.float32)
    np.testing.assert_allclose(found, tf.nn.log_softmax(2 * counts), rtol=1e-6)
