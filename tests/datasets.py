"""Serves a folder on this machine, and runs the scripts that download from it."""

import contextlib
import functools
import http.server
import io
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, also from a byte offset, like a server of archives."""

    def send_head(self):
        expected = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        path = pathlib.Path(self.translate_path(self.path))
        if not expected or not path.is_file():
            return super().send_head()
        content, first = path.read_bytes(), int(expected[1])
        self.send_response(206)
        self.send_header("Content-Length", str(len(content) - first))
        self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        return io.BytesIO(content[first:])

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[str]:
    """Serves `folder`; yields the address."""
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def script(path: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs a shell script of the checkout with this Python and these variables."""
    return subprocess.run(
        [str(ROOT / path), *words],
        env={**os.environ, "PYTHON": sys.executable, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
