"""Tests downloads: what an interruption leaves is completed, and a server that refuses or breaks off is an error."""

import http.server
import threading

import pytest

from common.data import download

CONTENT = bytes(range(256)) * 4


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT: /whole without ranges, /ranges with them, /broken with every first answer cut."""

    calls = 0

    def do_GET(self):
        first = 0
        if self.path == "/none":
            self.send_error(404)
            return
        if self.path != "/whole" and "Range" in self.headers:
            first = int(self.headers["Range"][6:-1])
            if first >= len(CONTENT):
                self.send_error(416)
                return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(CONTENT) - first))
        self.end_headers()
        type(self).calls += 1
        cut = self.path == "/always" or (self.path == "/broken" and self.calls == 1)
        self.wfile.write(CONTENT[first : first + 100] if cut else CONTENT[first:])

    def log_message(self, *_):
        pass


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(download, "WAIT_SECONDS", 0.0)
    Handler.calls = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("path", ["/whole", "/ranges", "/broken"])
@pytest.mark.parametrize("have", [0, 100, len(CONTENT)])
def test_a_download_is_completed(address, tmp_path, path, have):
    if have:
        (tmp_path / "file.part").write_bytes(CONTENT[:have])
    assert download.main([address + path, str(tmp_path / "file")]) == 0
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("path", "why", "calls"), [("/none", "404", 0), ("/always", "bytes came", download.TRIES)]
)
def test_a_failure_is_one_line_and_keeps_the_part(address, tmp_path, capsys, path, why, calls):
    assert download.main([address + path, str(tmp_path / "file")]) == 1
    message = capsys.readouterr().err
    assert why in message and message.count("\n") == 1 and Handler.calls == calls
    assert not (tmp_path / "file").exists() and (tmp_path / "file.part").exists() == (path == "/always")
