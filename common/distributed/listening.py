"""Chooses the address that a process's servers listen on, and reads from the kernel which they listen on."""

import concurrent.futures
import contextlib
import ipaddress
import os
import pathlib
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from common.errors import NoAnswerError, UserError

# The launcher's --allow_public sets it.
ALLOWED = "TIMETOTRAIN_ALLOW_PUBLIC"
LOOPBACK = "127.0.0.1"
LOCALHOST = "localhost"  # Always this host (RFC 6761); a container without /etc/hosts does not find it.
# As long as the processes wait for each other (replicas/cluster.py): a cluster's names may come with its hosts.
NAME_SECONDS = 120.0
# A host that lost its first packet answers the second, after a second (RFC 6298).
SILENT_SECONDS = 3.0
_LISTENS = "0A"  # TCP_LISTEN in Linux's include/net/tcp_states.h.


def local_address(hosts: Sequence[str], index: int) -> str:
    """Returns the address by which this process and the others reach each other; LOOPBACK if all names are loopback.

    The kernel's route decides, not the name of this host: Debian's /etc/hosts gives a host's own name 127.0.1.1.

    Args:
      hosts: names or addresses of all processes.

    Raises UserError if no other host's name has an address for `NAME_SECONDS`, or the address is public, and the
    launcher was not told --allow_public.
    """
    others = [host for host in hosts if host != hosts[index]]
    if not others and all(map(_is_loopback, hosts)):
        return LOOPBACK
    deadline = time.monotonic() + NAME_SECONDS
    while not (address := next(filter(None, map(route, others or hosts)), "")):
        if time.monotonic() >= deadline:
            raise NoAnswerError(
                f"{', '.join((others or hosts)[:3])}: no such host, or no way to it, within {NAME_SECONDS:.0f} s; "
                "check the names (--hosts, TF_CONFIG) and the network"
            )
        time.sleep(1)
    if ipaddress.ip_address(address.partition("%")[0]).is_global and not os.environ.get(ALLOWED):
        raise UserError(
            f"{hosts[index]}: its address {address} is public, and who reaches a process's port can run code in it; "
            "use the hosts' addresses in a private network, or --allow_public behind a firewall"
        )
    return address


def names_from_here(hosts: Sequence[str], index: int) -> list[str]:
    """Returns the hosts as this one, `hosts[index]`, can reach them: itself by address if need be.

    Debian's installer gives a host's own name 127.0.1.1, where no server of a run on several hosts listens. A
    host whose name only the others know does not find itself either.

    Raises what `local_address` raises.
    """
    hosts = [LOOPBACK if host == LOCALHOST else host for host in hosts]
    name = hosts[index]
    if (route(name) and not _is_loopback(name)) or all(map(_is_loopback, hosts)):
        return hosts
    address = local_address(hosts, index)
    return [address if host == name else host for host in hosts]


def route(host: str) -> str:
    """Returns the address from which the kernel would send to a host; "" if it cannot."""
    with contextlib.suppress(OSError):
        family, kind, *_, to = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # Sends nothing: connecting asks the kernel for a route.
            probe.connect(to)
            return probe.getsockname()[0]
    return ""


def _is_loopback(host: str) -> bool:
    if host == LOCALHOST:
        return True
    with contextlib.suppress(OSError):
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    return False


def silent(hosts: Iterable[str], port: int) -> list[str]:
    """Returns the hosts that neither accept nor refuse a connection: their machine or the network to it is down."""

    def answers(host: str) -> bool:
        try:
            socket.create_connection((host, port), SILENT_SECONDS).close()
            return True
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)

    hosts = list(hosts)
    with concurrent.futures.ThreadPoolExecutor(max(len(hosts), 1)) as pool:
        return [host for host, answered in zip(hosts, pool.map(answers, hosts)) if not answered]


class Listener(NamedTuple):
    """A TCP socket that listens: its address, port and inode."""

    address: str
    port: int
    inode: str


def listeners(pid: int | str = "self") -> Iterator[Listener]:
    """Yields the sockets that listen in a process's network namespace, by the kernel's own table."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                _, local, _, state, *fields = line.split()
                if state == _LISTENS:
                    words, _, port = local.partition(":")
                    yield Listener(_address(bytes.fromhex(words)), int(port, 16), fields[5])


def _address(words: bytes) -> str:
    """Returns the address in the kernel's form, 32-bit words in this machine's order."""
    packed = b"".join(struct.pack("!I", word) for (word,) in struct.iter_unpack("=I", words))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)
