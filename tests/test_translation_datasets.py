"""Tests init_datasets.sh of both translators on a small copy of the servers: download, resume, checksums, data."""

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
pytest.importorskip("subword_nmt", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")
# {benchmark: {archive: names of its files without the language}}.
REST = {
    "crawl/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "europarl/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
}
CORPORA = {
    "gnmt": {
        "news/training-parallel-nc-v11.tgz": "training-parallel-nc-v11/news-commentary-v11.de-en",
        **REST,
    },
    "transformer": {"news/training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en", **REST},
}
VOCABULARY = "vocab.translate_ende_wmt32k.32768.subwords"
EACH = 40


@pytest.fixture(scope="module", params=CORPORA)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple]:
    """(benchmark, its server)."""
    folder, corpora, texts = tmp_path_factory.mktemp("server"), CORPORA[request.param], []
    for number, (archive, stem) in enumerate(corpora.items()):
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
    files = (*corpora, *(f"test/{name}" for name in NEWSTEST))
    files += (VOCABULARY,) if request.param == "transformer" else ()
    with translation.serving(folder, *files) as files_server:
        yield request.param, files_server


def init(server: tuple[str, Server], data_dir: pathlib.Path, **variables: str) -> subprocess.CompletedProcess:
    benchmark, place = server
    settings = {"MERGES": "30"} if benchmark == "gnmt" else {"VOCABULARY_URL": place.address}
    return place.init_datasets(benchmark, data_dir, **settings, **variables)


def test_downloads_completes_verifies_and_converts(server, tmp_path):
    """A partial archive is completed, and a complete file is not downloaded again."""
    (benchmark, place), raw, data = server, tmp_path / "raw", tmp_path / "data"
    translation.interrupted(place, raw)
    done = init(server, data, RAW_DIR=str(raw))
    assert done.returncode == 0, done.stderr
    translation.assert_completed(place, raw, done.stderr)
    assert not list(raw.glob("*.part"))
    assert f"downloading {place.address}/test/{NEWSTEST[1]}" in done.stderr
    assert f"pairs {3 * EACH}" in done.stdout and "empty 3" in done.stdout and "too_long 3" in done.stdout
    for name, ours in zip(NEWSTEST, ("eval.source", "eval.reference")):
        assert (data / ours).read_bytes() == (place.folder / "test" / name).read_bytes()
    records = sum(tfrecords.count(path) for path in data.glob("train-*"))
    if benchmark == "gnmt":
        assert records == 3 * EACH
        assert (data / "vocab.bpe").read_text().startswith("<unk>\n<s>\n</s>\n")
        return
    assert (data / "vocab.subwords").read_bytes() == (place.folder / VOCABULARY).read_bytes()
    note = json.loads((data / "convert.json").read_text())
    assert (note["max_length"], note["packed_length"], note["pairs"]) == (80, 256, 3 * EACH)
    assert records == note["packed"]
    # The full-size presets read the data once their numbers of examples are given.
    flags = [part for part in done.stdout.split() if part.startswith("--config.")]
    changes = {name.removeprefix("--config."): int(value) for name, value in (f.split("=") for f in flags)}
    config = PRESETS["tpu-v4-16"]
    same = {name for name in changes if changes[name] == getattr(config, name)}
    assert same == {"packed_length", "max_sequence_length"}
    pipeline.check(type(config)(**changes, optimizer=config.optimizer), data)


def test_a_wrong_checksum_is_one_line(server, tmp_path):
    name = server[1].files[0].name
    done = init(server, tmp_path / "data", sums=f"{'0' * 64}  {name}\n")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"{name}: SHA-256 is" in last and "remove the file" in last


def test_failures_are_one_line(server, tmp_path):
    """A file is missing on the server; the script has no output folder."""
    benchmark, place = server
    done = place.init_datasets(benchmark, tmp_path / "data", NEWSTEST_URL=f"{place.address}/nowhere")
    assert done.returncode == 2
    assert "error: cannot download" in done.stderr.splitlines()[-1]
    done = place.init_datasets(benchmark, tmp_path / "data", DATA_DIR="")
    assert done.returncode == 2 and done.stderr.startswith("error: DATA_DIR is not set")
