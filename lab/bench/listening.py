"""Shows what the processes of a run listen on, on one host and between two network namespaces (as root).

    python -m lab.bench.listening [--backends multiworker pjrt horovod] [--seconds N]

The namespaces stand for two hosts: a pair of virtual interfaces, 10.77.0.1 and 10.77.0.2, joins them. What the file has
of other backends stays.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from lab.bench.harness import launched, scripts
from lab.bench.harness.scripts import head, write

_LISTENS = "0A"  # TCP_LISTEN in Linux's include/net/tcp_states.h.
_ADDRESSES = ("10.77.0.1", "10.77.0.2")


def addresses(pid: int) -> set[str]:
    """Returns the local addresses, without ports, of a process's listening TCP sockets."""
    inodes = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(path).removeprefix("socket:[").rstrip("]"))
    shown = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                _, local, _, state, *fields = line.split()
                if state == _LISTENS and fields[5] in inodes:
                    words = bytes.fromhex(local.partition(":")[0])
                    packed = b"".join(
                        struct.pack("!I", *struct.unpack("=I", words[i : i + 4]))
                        for i in range(0, len(words), 4)
                    )
                    address = ipaddress.ip_address(packed)
                    shown.add(str(getattr(address, "ipv4_mapped", None) or address))
    return shown


def watched(marks: list[str], seconds: float, trained: Path) -> set[str]:
    """Returns all addresses that processes with these marks listen on, until they have trained or time is over."""
    until, shown = time.monotonic() + seconds, set[str]()
    while time.monotonic() < until:
        for mark in marks:
            for pid in launched.marked(mark):
                shown |= addresses(pid)
        if any('"block_stop"' in path.read_text() for path in trained.rglob("result_*")):
            break
        time.sleep(0.3)
    return shown


@contextlib.contextmanager
def _namespaces() -> Iterator[list[str]]:
    """Yields two network namespaces that reach each other."""
    names = [f"timetotrain-{os.getpid()}-{i}" for i in range(2)]
    ends = [f"tt{os.getpid() % 100000}{i}" for i in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, _ADDRESSES, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for link in (end, "lo"):
                ip("-n", name, "link", "set", link, "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def one_host(backend: str, data: Path, seconds: float) -> set[str]:
    """Returns the addresses of a run of two processes on this host."""
    with tempfile.TemporaryDirectory() as name:
        run = launched.Launched(Path(name), data, backend, 2, [])
        try:
            return watched([run.mark], seconds, Path(name))
        finally:
            run.close()


def two_hosts(backend: str, data: Path, seconds: float) -> set[str]:
    """Returns the addresses of a run of one process in each of two namespaces."""
    with tempfile.TemporaryDirectory() as name, _namespaces() as namespaces:
        hosts = ",".join(f"{address}:1" for address in _ADDRESSES)
        runs = [
            launched.Launched(
                Path(name),
                data,
                backend,
                2,
                [f"--hosts={hosts}", f"--launcher={i}"],
                prefix=("ip", "netns", "exec", namespace),
            )
            for i, namespace in enumerate(namespaces)
        ]
        try:
            return watched([run.mark for run in runs], seconds, Path(name))
        finally:
            for run in runs:
                run.close()


def main() -> None:
    parser = scripts.parser(__doc__, "listening.json")
    parser.add_argument("--backends", nargs="+", default=list(launched.BACKENDS), choices=launched.BACKENDS)
    parser.add_argument("--seconds", type=float, default=300, help="for a run's first epoch (%(default)s)")
    options = parser.parse_args()
    before = json.loads(options.output.read_text())["addresses"] if options.output.exists() else {}
    result = {**head("horovod"), "addresses": before}
    with launched.digits() as data:
        for backend in options.backends:
            for place in (one_host, two_hosts):
                shown = sorted(place(backend, data, options.seconds))
                result["addresses"][f"{backend}/{place.__name__}"] = shown
                print(backend, place.__name__, *shown or ["nothing"], flush=True)
                write(result, options.output)


if __name__ == "__main__":
    sys.exit(main())
