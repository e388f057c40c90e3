"""Runs Horovod's rendezvous server in the launcher. TensorFlow-free; needs Horovod (make horovod)."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from common.errors import UserError
from timetotrain.launch.elastic import SCOPE, Membership
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

        class Handler(RendezvousHandler):
            """Also answers processes that ask for a new rank."""

            def _get_value(self, scope: str, key: str) -> bytes | None:
                if scope == SCOPE and self.server.membership:
                    return self.server.membership.rejoin(key)
                return super()._get_value(scope, key)

        try:
            self._server = RendezvousHTTPServer((address, port), Handler, 0)
        except OSError as error:
            raise UserError(f"--port={port}: {error.strerror}; give another") from error
        self._server.daemon_threads = True
        self._server.membership = None
        self.port = self._server.server_address[1]
        self.reset(ranks)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def reset(self, ranks: Sequence[Rank]) -> None:
        """Forgets all addresses and expects the addresses of these ranks."""
        self._server.init([_Slot(rank) for rank in ranks])

    def elastic(self, ranks: Sequence[Rank], least: int) -> Membership:
        """Lets the run continue when ranks are lost, down to `least`; returns the ranks' membership."""
        self._server.membership = Membership(ranks, least, self.reset)
        return self._server.membership

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Slot:
    """The fields of horovod.runner.common.util.hosts.SlotInfo that the server reads."""

    def __init__(self, rank: Rank):
        self.hostname, self.size = rank.host, rank.size
        self.local_rank, self.local_size, self.cross_size = rank.local_rank, rank.local_size, rank.cross_size
