"""init_datasets.sh against a small copy of the servers: download, resume, checksums, conversion."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import threading

import pytest

from common.data import tfrecords
from common.text import subwords
from transformer import input as pipeline
from transformer.presets import PRESETS

pytest.importorskip("official.nlp.metrics.bleu", reason="tf-models-official absent")
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Archive: the files in it, without their language.
CORPORA = {
    "news/training-parallel-nc-v12.tgz": "training/news-commentary-v12.de-en",
    "crawl/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "europarl/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
}
NEWSTEST = ("newstest2014.en", "newstest2014.de")
VOCABULARY = "vocab.translate_ende_wmt32k.32768.subwords"
EACH = 40


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files, also from a byte on, as a server of archives has them."""

    def send_head(self):
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        path = pathlib.Path(self.translate_path(self.path))
        if not wanted or not path.is_file():
            return super().send_head()
        content, first = path.read_bytes(), int(wanted[1])
        self.send_response(206)
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        return io.BytesIO(content[first:])

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(the folder that is served, its address)."""
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
                # Left out, on both sides: an empty line, and one that is too long.
                lines += ["" if language == "de" else "lost", " ".join(map(str, range(90)))]
                texts.append(folder / f"{number}.{language}")
                texts[-1].write_text("\n".join(lines) + "\n")
                tar.add(texts[-1], f"{stem}.{language}")
    (folder / "test").mkdir()
    for name, text in zip(NEWSTEST, ("the house is old\n", "das haus ist alt\n")):
        (folder / "test" / name).write_text(text)
    subwords.build(folder / VOCABULARY, texts, 60)
    listening = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    )
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()


def init(server, data_dir: pathlib.Path, sums: str = "", **variables: str) -> subprocess.CompletedProcess:
    folder, address = server
    served = [*(folder / archive for archive in CORPORA), *(folder / "test" / name for name in NEWSTEST)]
    served.append(folder / VOCABULARY)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in served]
    note = data_dir.with_suffix(".sums")
    note.write_text(sums or "".join(lines))
    environment = {
        **os.environ,
        "DATA_DIR": str(data_dir),
        "PYTHON": sys.executable,
        "SHA256SUMS": str(note),
        "SHARDS": "2",
        "WORKERS": "1",
        "NEWS_URL": f"{address}/news",
        "CRAWL_URL": f"{address}/crawl",
        "EUROPARL_URL": f"{address}/europarl",
        "NEWSTEST_URL": f"{address}/test",
        "VOCABULARY_URL": address,
        **variables,
    }
    command = [str(ROOT / "transformer" / "init_datasets.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_downloads_completes_verifies_and_converts(server, tmp_path):
    """What an interruption left of an archive is completed; what is whole is not asked for again."""
    folder, address = server
    raw, data = tmp_path / "raw", tmp_path / "data"
    raw.mkdir()
    archive = folder / next(iter(CORPORA))
    (raw / f"{archive.name}.part").write_bytes(archive.read_bytes()[:100])
    (raw / NEWSTEST[0]).write_bytes((folder / "test" / NEWSTEST[0]).read_bytes())
    done = init(server, data, RAW_DIR=str(raw))
    assert done.returncode == 0, done.stderr
    assert (raw / archive.name).read_bytes() == archive.read_bytes()
    assert not list(raw.glob("*.part"))
    assert f"downloading {address}/test/{NEWSTEST[1]}" in done.stderr
    assert f"downloading {address}/test/{NEWSTEST[0]}" not in done.stderr

    assert f"pairs {3 * EACH}" in done.stdout and "empty 3" in done.stdout and "too_long 3" in done.stdout
    for name, ours in zip(NEWSTEST, ("eval.source", "eval.reference")):
        assert (data / ours).read_bytes() == (folder / "test" / name).read_bytes()
    assert (data / "vocab.subwords").read_bytes() == (folder / VOCABULARY).read_bytes()
    note = json.loads((data / "convert.json").read_text())
    assert (note["max_length"], note["packed_length"], note["pairs"]) == (80, 256, 3 * EACH)
    assert sum(tfrecords.count(path) for path in data.glob("train-*")) == note["packed"]
    # The full-size presets read it, but for its numbers.
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
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"{name}: SHA-256 is" in last and "remove the file" in last


def test_a_server_without_the_file_is_one_line(server, tmp_path):
    done = init(server, tmp_path / "data", NEWSTEST_URL=f"{server[1]}/nowhere")
    assert done.returncode == 2
    assert "error: cannot download" in done.stderr.splitlines()[-1]


def test_without_data_dir_it_says_so(server, tmp_path):
    done = init(server, tmp_path / "data", DATA_DIR="")
    assert done.returncode == 2 and done.stderr.startswith("error: DATA_DIR is not set")
