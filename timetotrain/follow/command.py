"""Shows a run while it trains: as a page that is written again (--follow) or served (--serve), or in TensorBoard.

All read the run's history, the only store of its curves. The path is a run's log (finished or still being written), its
history, or a folder that holds them; in a folder, the newest run is shown. TensorFlow-free.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import pathlib
import re
import sys
import time
import urllib.parse
from typing import Any

from common import files
from common.errors import UserError, one_line
from timetotrain.follow import page
from timetotrain.run import history

SECONDS = 5.0
PORT = 8090
_SOUND = "get a sound copy of the history"
_FIX = "name a run's result_<i>.txt, its history_<i>.jsonl, or a folder that holds one"


def run(options: argparse.Namespace) -> int:
    """Writes or serves the page, or writes TensorBoard's events; returns the exit status.

    Raises:
      UserError: there is no history, it is damaged, the page cannot be written or the port is taken.
    """
    found = find(pathlib.Path(options.result))
    if options.serve:
        return serve(found, options.port)
    if options.tensorboard:
        from timetotrain.follow.tensorboard import Writer

        output = pathlib.Path(options.tensorboard)
        writer = Writer(output)

        def write(records: list[history.Record]) -> None:
            with one_line(f"{found}: its records cannot be drawn", _SOUND):
                writer.write(records)

    else:
        output = pathlib.Path(options.output or found.with_name(f"follow_{number(found)}.html"))

        def write(records: list[history.Record]) -> None:
            files.write_atomically(output, _drawn(found, records))

    print(output, flush=True)
    while True:
        records = history.read(found)
        write(records)
        if not options.follow or page.ended(records):
            return 0
        try:
            time.sleep(SECONDS)
        except KeyboardInterrupt:
            return 130


def find(path: pathlib.Path) -> pathlib.Path:
    """Returns the history of a run.

    Raises:
      UserError: there is none.
    """
    if os.path.isdir(path):
        all_found = [*path.rglob("history_*.jsonl"), *path.glob(history.NAME)]
        newest = max(all_found, key=lambda p: p.stat().st_mtime, default=None)
        if newest is None:
            raise UserError(f"{path}: no history of a run in it; {_FIX}")
        return newest
    log = re.fullmatch(r"result_(\d+)\.txt(\.partial)?", path.name)
    if log:
        path = path.with_name(f"history_{log[1]}.jsonl")
    if not os.path.isfile(path):
        raise UserError(f"{path}: no such file; {_FIX}")
    return path


def number(path: pathlib.Path) -> str:
    """Returns the run number from its history's file name; 0 for the history beside checkpoints."""
    found = re.search(r"history_(\d+)", path.name)
    return found[1] if found else "0"


def _drawn(found: pathlib.Path, records: list[history.Record]) -> bytes:
    """Returns the page of a history, which may come from a stranger."""
    with one_line(f"{found}: its records cannot be drawn", _SOUND):
        return page.render(records, _examples(found), f"examples_{number(found)}/").encode()


def _examples(path: pathlib.Path) -> list[dict[str, Any]]:
    from timetotrain.run import examples

    return examples.read(path.with_name(f"examples_{number(path)}"))


class _Handler(http.server.BaseHTTPRequestHandler):
    """Serves / (the page) and the examples' pictures; nothing else on the machine."""

    def __init__(self, found: pathlib.Path, *arguments: Any):
        self._found = found
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802
        """Answers a request."""
        name = urllib.parse.urlparse(self.path).path
        folder = f"examples_{number(self._found)}"
        picture = re.fullmatch(rf"/{folder}/([\w-]+\.(?:jpg|png))", name)
        try:
            if name == "/":
                self._send(_drawn(self._found, history.read(self._found)))
            elif picture:
                kind = "image/png" if picture[1].endswith("png") else "image/jpeg"
                self._send(self._found.with_name(folder).joinpath(picture[1]).read_bytes(), kind)
            else:
                self.send_error(404)
        except FileNotFoundError:
            self.send_error(404)
        except UserError as error:
            self.send_error(500, str(error).encode("ascii", "replace").decode())
        except BrokenPipeError:
            pass

    def _send(self, content: bytes, kind: str = "text/html; charset=utf-8") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Suppresses the per-request log line."""


def server(found: pathlib.Path, port: int) -> http.server.ThreadingHTTPServer:
    """Returns a server of the page that only this machine can reach.

    Raises:
      UserError: the port is taken or invalid.
    """
    try:
        return http.server.ThreadingHTTPServer(("127.0.0.1", port), functools.partial(_Handler, found))
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--port={port}: {getattr(error, 'strerror', None) or error}; give another --port"
        ) from error


def serve(found: pathlib.Path, port: int) -> int:
    """Serves the page until Ctrl-C; returns the exit status."""
    with server(found, port) as answering:
        address = f"http://127.0.0.1:{answering.server_address[1]}/"
        print(f"{address} shows {found}; Ctrl-C ends", file=sys.stderr, flush=True)
        try:
            answering.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
