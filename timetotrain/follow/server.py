"""Serves the page that follows a run, and the examples' pictures, to this machine alone. TensorFlow-free.

A page is drawn once for all requests, and again only when the files have changed. Connections and their times are
bounded, and a request for another host's name is refused, since a page of that host could have caused it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import math
import pathlib
import re
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from common import untrusted
from common.errors import UserError
from timetotrain.run import history

PORT = 8090
# Bounds of this project's choice: connections at a time, seconds of one of them, seconds between two drawings, and
# bytes of a picture.
CONNECTIONS, CONNECTION_SECONDS, DRAW_SECONDS, PICTURE_BYTES = 16, 30.0, 1.0, 1 << 24
_HOSTS = ("127.0.0.1", "localhost", "[::1]")
Draw = Callable[[pathlib.Path, list[history.Record]], bytes]


class Page:
    """The page of a history, drawn when it is asked for and the files have changed."""

    def __init__(self, path: pathlib.Path, draw: Draw):
        """`draw(path, records)` returns the page."""
        self.path, self._draw = path, draw
        number = re.search(r"history_(\d+)", path.name)
        self.examples = path.with_name(f"examples_{number[1] if number else 0}")
        self._lock, self._seen, self._drawn_at, self._page = threading.Lock(), None, -math.inf, b""

    def __call__(self) -> bytes:
        """Returns the page; requests that come while it is drawn wait for that drawing.

        Raises UserError: the history is damaged.
        """
        with self._lock:
            seen = [(s.st_mtime_ns, s.st_size) for s in (p.stat() for p in self._files() if p.exists())]
            if seen != self._seen and time.monotonic() - self._drawn_at >= DRAW_SECONDS:
                began = time.monotonic()
                self._page, self._seen = self._draw(self.path, history.read(self.path)), seen
                # A page that takes long to draw is drawn at most half of the time.
                self._drawn_at = 2 * time.monotonic() - began
            return self._page

    def _files(self) -> list[pathlib.Path]:
        return [self.path, self.examples]

    def picture(self, name: str) -> bytes:
        """Returns a picture of the examples.

        Raises ValueError, OSError: there is none, or it is a link.
        """
        if self.examples.is_symlink():
            raise ValueError(f"{self.examples.name} is a link")
        return untrusted.read_plain(self.examples / name, PICTURE_BYTES)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves / (the page) and the examples' pictures; nothing else on the machine."""

    timeout = CONNECTION_SECONDS

    def __init__(self, page: Page, *arguments: Any):
        self._page = page
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802
        """Answers a request."""
        if re.sub(r":\d+$", "", self.headers.get("Host", _HOSTS[0])).lower() not in _HOSTS:
            self.send_error(403, "ask for 127.0.0.1 or localhost")
            return
        name = urllib.parse.urlparse(self.path).path
        picture = re.fullmatch(rf"/{self._page.examples.name}/([\w-]+\.(jpg|png))", name)
        try:
            if name == "/":
                self._send(self._page())
            elif picture:
                kind = "image/png" if picture[2] == "png" else "image/jpeg"
                self._send(self._page.picture(picture[1]), kind)
            else:
                self.send_error(404)
        except UserError as error:
            self.send_error(500, str(error).encode("ascii", "replace").decode())
        except (BrokenPipeError, ConnectionResetError):
            pass
        except (ValueError, OSError):
            self.send_error(404)

    def _send(self, content: bytes, kind: str = "text/html; charset=utf-8") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Suppresses the per-request log line."""


class Server(http.server.ThreadingHTTPServer):
    """A server with bounds on its connections' number and time."""

    def __init__(self, page: Page, port: int):
        """Raises UserError if the port is taken or invalid."""
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        try:
            super().__init__(("127.0.0.1", port), functools.partial(_Handler, page))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"--port={port}: {getattr(error, 'strerror', None) or error}; give another --port"
            ) from error

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a connection's thread, or closes the connection if too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers a connection's request; ends the connection after `CONNECTION_SECONDS`."""
        end = threading.Timer(CONNECTION_SECONDS, _hang_up, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._free.release()

    def handle_error(self, *_: Any) -> None:
        """Suppresses the traceback of a connection that broke."""


def _hang_up(request: socket.socket) -> None:
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def serve(page: Page, port: int) -> int:
    """Serves the page until Ctrl-C; returns the exit status."""
    with Server(page, port) as server:
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        print(f"{address} shows {page.path}; Ctrl-C ends", file=sys.stderr, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
