"""Tests init_datasets.sh on a small copy of the servers: download, resume, checksums, conversion."""

import io
import pathlib
import subprocess
import tarfile
from collections.abc import Iterator

import pytest

from common.data import tfrecords
from common.text import pair
from tests import translation
from tests.translation import NEWSTEST, Server

pytest.importorskip("subword_nmt", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")
CORPORA = {
    "news/training-parallel-nc-v11.tgz": "training-parallel-nc-v11/news-commentary-v11.de-en",
    "crawl/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "europarl/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    grammar = pair.Grammar(pair.Pair(train_pairs=90, eval_pairs=7))
    train, held = grammar.pairs("train"), grammar.pairs("eval")
    for i, (archive, stem) in enumerate(CORPORA.items()):
        (folder / archive).parent.mkdir()
        with tarfile.open(folder / archive, "w:gz") as tar:
            for side, language in enumerate(("en", "de")):
                lines = [sentence[side] for sentence in train[30 * i : 30 * (i + 1)]]
                # The conversion drops the pair of an empty line on both sides.
                content = ("\n".join([*lines, "" if side else "lost"]) + "\n").encode()
                note = tarfile.TarInfo(f"{stem}.{language}")
                note.size = len(content)
                tar.addfile(note, io.BytesIO(content))
    (folder / "test").mkdir()
    for side, name in enumerate(NEWSTEST):
        (folder / "test" / name).write_text("".join(f"{sentence[side]}\n" for sentence in held))
    with translation.serving(folder, *CORPORA, *(f"test/{name}" for name in NEWSTEST)) as here:
        yield here


def init(server: Server, data_dir: pathlib.Path, **variables: str) -> subprocess.CompletedProcess:
    return server.init_datasets("gnmt", data_dir, MERGES="300", **variables)


def test_downloads_verifies_and_converts(server, tmp_path):
    done = init(server, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    data = tmp_path / "data"
    assert sum(tfrecords.count(p) for p in data.glob("train-*")) == 90
    assert "pairs 90, eval 7" in done.stdout and "empty 3" in done.stdout
    for name, ours in zip(NEWSTEST, ("eval.source", "eval.reference")):
        assert (data / ours).read_bytes() == (server.folder / "test" / name).read_bytes()
    assert (data / "vocab.bpe").read_text().startswith("<unk>\n<s>\n</s>\n")


def test_an_interrupted_download_is_completed(server, tmp_path):
    raw = tmp_path / "raw"
    archive = translation.interrupted(server, raw)
    wrong = "0" * 64 + f"  {archive.name}\n"
    done = init(server, tmp_path / "data", sums=wrong, RAW_DIR=str(raw))
    translation.assert_completed(server, raw, done.stderr)
    translation.assert_refuses_the_checksum(done, archive.name)


def test_failures_are_one_line(server, tmp_path):
    translation.assert_failures_are_one_line(server, "gnmt", tmp_path / "data")
