"""Runs Horovod's rendezvous server in the launcher. TensorFlow-free; needs Horovod (make horovod)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from common.errors import UserError
from timetotrain.launch.plan import Rank


class Rendezvous:
    """A server that lets Horovod's processes find one another; `port` 0 picks a free one.

    Raises:
      UserError: Horovod is not installed, or the port is taken.
    """

    def __init__(self, ranks: Sequence[Rank], address: str, port: int = 0):
        try:
            from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
        except ImportError as error:
            raise UserError("--replicas=horovod: Horovod is not installed; run `make horovod`") from error

        try:
            self._server = RendezvousHTTPServer((address, port), RendezvousHandler, 0)
        except OSError as error:
            raise UserError(f"--port={port}: {error.strerror}; give another") from error
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._server.init([_Slot(rank) for rank in ranks])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Slot:
    """The fields of horovod.runner.common.util.hosts.SlotInfo that the server reads."""

    def __init__(self, rank: Rank):
        self.hostname, self.size = rank.host, rank.size
        self.local_rank, self.local_size, self.cross_size = rank.local_rank, rank.local_size, rank.cross_size
