"""init_datasets.sh against a small copy of the servers: download, resume, checksums, conversion."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import threading

import pytest

from common.data import tfrecords
from common.text import pair

pytest.importorskip("subword_nmt", reason="subword-nmt absent")
pytest.importorskip("sacremoses", reason="sacremoses absent")
ROOT = pathlib.Path(__file__).resolve().parents[2]
CORPORA = {
    "news/training-parallel-nc-v11.tgz": "training-parallel-nc-v11/news-commentary-v11.de-en",
    "crawl/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
    "europarl/training-parallel-europarl-v7.tgz": "training/europarl-v7.de-en",
}
NEWSTEST = ("newstest2014.en", "newstest2014.de")


class Resuming(http.server.SimpleHTTPRequestHandler):
    """Knows what is left of a file, as the real servers do."""

    def do_GET(self) -> None:  # noqa: N802
        path, wanted = pathlib.Path(self.translate_path(self.path)), self.headers.get("Range")
        if not wanted or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        first = int(wanted.removeprefix("bytes=").rstrip("-"))
        self.send_response(206)
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[first:])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(the folder that is served, its address)."""
    folder = tmp_path_factory.mktemp("server")
    grammar = pair.Grammar(pair.Pair(train_pairs=90, eval_pairs=7))
    train, held = grammar.pairs("train"), grammar.pairs("eval")
    for i, (archive, stem) in enumerate(CORPORA.items()):
        (folder / archive).parent.mkdir()
        with tarfile.open(folder / archive, "w:gz") as tar:
            for side, language in enumerate(("en", "de")):
                lines = [sentence[side] for sentence in train[30 * i : 30 * (i + 1)]]
                # An empty line is left out, on both sides.
                content = ("\n".join([*lines, "" if side else "lost"]) + "\n").encode()
                note = tarfile.TarInfo(f"{stem}.{language}")
                note.size = len(content)
                tar.addfile(note, io.BytesIO(content))
    (folder / "test").mkdir()
    for side, name in enumerate(NEWSTEST):
        (folder / "test" / name).write_text("".join(f"{sentence[side]}\n" for sentence in held))
    handler = functools.partial(Resuming, directory=str(folder))
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()


def init(server, data_dir: pathlib.Path, sums: str | None = None, **variables: str):
    folder, address = server
    served = [folder / archive for archive in CORPORA] + [folder / "test" / name for name in NEWSTEST]
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in served]
    note = data_dir.with_suffix(".sums")
    note.write_text(sums or "\n".join(lines) + "\n")
    environment = {
        **os.environ,
        "DATA_DIR": str(data_dir),
        "PYTHON": sys.executable,
        "SHA256SUMS": str(note),
        "MERGES": "300",
        "SHARDS": "2",
        "WORKERS": "1",
        "NEWS_URL": f"{address}/news",
        "CRAWL_URL": f"{address}/crawl",
        "EUROPARL_URL": f"{address}/europarl",
        "NEWSTEST_URL": f"{address}/test",
        **variables,
    }
    command = [str(ROOT / "gnmt" / "init_datasets.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_downloads_verifies_and_converts(server, tmp_path):
    done = init(server, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    data = tmp_path / "data"
    assert sum(tfrecords.count(p) for p in data.glob("train-*")) == 90
    assert "pairs 90, eval 7" in done.stdout and "empty 3" in done.stdout
    for name, ours in zip(NEWSTEST, ("eval.source", "eval.reference")):
        assert (data / ours).read_bytes() == (server[0] / "test" / name).read_bytes()
    assert (data / "vocab.bpe").read_text().startswith("<unk>\n<s>\n</s>\n")


def test_an_interrupted_download_is_completed(server, tmp_path):
    folder, _ = server
    raw = tmp_path / "raw"
    raw.mkdir()
    archive = folder / next(iter(CORPORA))
    (raw / f"{archive.name}.part").write_bytes(archive.read_bytes()[:100])
    # What is complete is not asked for again.
    (raw / NEWSTEST[0]).write_bytes((folder / "test" / NEWSTEST[0]).read_bytes())
    wrong = "0" * 64 + f"  {archive.name}\n"
    done = init(server, tmp_path / "data", sums=wrong, RAW_DIR=str(raw))
    assert (raw / archive.name).read_bytes() == archive.read_bytes()
    assert (
        f"downloading http://127.0.0.1:{server[1].rpartition(':')[2]}/test/{NEWSTEST[0]}" not in done.stderr
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"{archive.name}: SHA-256 is" in last and "remove the file" in last


def test_a_server_without_the_file_is_one_line(server, tmp_path):
    done = init(server, tmp_path / "data", NEWSTEST_URL=f"{server[1]}/nowhere")
    assert done.returncode == 2
    assert "error: cannot download" in done.stderr.splitlines()[-1]


def test_without_data_dir_it_says_so(server, tmp_path):
    done = init(server, tmp_path / "data", DATA_DIR="")
    assert done.returncode == 2 and done.stderr.startswith("error: DATA_DIR is not set")
