"""Tests init_datasets.sh on a small copy of the servers: download, resume, checksums, conversion."""

import json
import pathlib
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from common.data import tfrecords
from common.text import subwords
from tests import translation
from tests.translation import NEWSTEST, Server
from transformer import input as pipeline
from transformer.presets import PRESETS

pytest.importorskip("official.nlp.metrics.bleu", reason="tf-models-official absent")
# {archive: names of its files without the language}.
CORPORA = {
    "news/training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en",
    "crawl/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "europarl/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
}
VOCABULARY = "vocab.translate_ende_wmt32k.32768.subwords"
EACH = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    texts = []
    for number, (archive, stem) in enumerate(CORPORA.items()):
        (folder / archive).parent.mkdir()
        with tarfile.open(folder / archive, "w:gz") as tar:
            for language, sentence in (
                ("en", "the house number {} is old"),
                ("de", "das haus nummer {} ist alt"),
            ):
                lines = [sentence.format(EACH * number + i) for i in range(EACH)]
                # The conversion drops the pairs of an empty line and of one that is too long.
                lines += ["" if language == "de" else "lost", " ".join(map(str, range(90)))]
                texts.append(folder / f"{number}.{language}")
                texts[-1].write_text("\n".join(lines) + "\n")
                tar.add(texts[-1], f"{stem}.{language}")
    (folder / "test").mkdir()
    for name, text in zip(NEWSTEST, ("the house is old\n", "das haus ist alt\n")):
        (folder / "test" / name).write_text(text)
    subwords.build(folder / VOCABULARY, texts, 60)
    files = (*CORPORA, *(f"test/{name}" for name in NEWSTEST), VOCABULARY)
    with translation.serving(folder, *files) as here:
        yield here


def init(server: Server, data_dir: pathlib.Path, **variables: str) -> subprocess.CompletedProcess:
    return server.init_datasets("transformer", data_dir, VOCABULARY_URL=server.address, **variables)


def test_downloads_completes_verifies_and_converts(server, tmp_path):
    """A partial archive is completed, and a complete file is not downloaded again."""
    folder, raw, data = server.folder, tmp_path / "raw", tmp_path / "data"
    translation.interrupted(server, raw)
    done = init(server, data, RAW_DIR=str(raw))
    assert done.returncode == 0, done.stderr
    translation.assert_completed(server, raw, done.stderr)
    assert not list(raw.glob("*.part"))
    assert f"downloading {server.address}/test/{NEWSTEST[1]}" in done.stderr

    assert f"pairs {3 * EACH}" in done.stdout and "empty 3" in done.stdout and "too_long 3" in done.stdout
    for name, ours in zip(NEWSTEST, ("eval.source", "eval.reference")):
        assert (data / ours).read_bytes() == (folder / "test" / name).read_bytes()
    assert (data / "vocab.subwords").read_bytes() == (folder / VOCABULARY).read_bytes()
    note = json.loads((data / "convert.json").read_text())
    assert (note["max_length"], note["packed_length"], note["pairs"]) == (80, 256, 3 * EACH)
    assert sum(tfrecords.count(path) for path in data.glob("train-*")) == note["packed"]
    # The full-size presets read the data once their numbers of examples are given.
    flags = [part for part in done.stdout.split() if part.startswith("--config.")]
    changes = {name.removeprefix("--config."): int(value) for name, value in (f.split("=") for f in flags)}
    config = PRESETS["tpu-v4-16"]
    assert {name for name in changes if changes[name] == getattr(config, name)} == {
        "packed_length",
        "max_sequence_length",
    }
    pipeline.check(type(config)(**changes, optimizer=config.optimizer), data)


def test_a_wrong_checksum_is_one_line(server, tmp_path):
    name = pathlib.Path(next(iter(CORPORA))).name
    done = init(server, tmp_path / "data", sums=f"{'0' * 64}  {name}\n")
    translation.assert_refuses_the_checksum(done, name)


def test_failures_are_one_line(server, tmp_path):
    translation.assert_failures_are_one_line(server, "transformer", tmp_path / "data")
