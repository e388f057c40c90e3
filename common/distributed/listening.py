"""Chooses the address that a process's servers listen on, and reads from the kernel which they listen on."""

import contextlib
import ipaddress
import os
import pathlib
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from common.errors import UserError

# The launcher's --allow_public sets it.
ALLOWED = "TIMETOTRAIN_ALLOW_PUBLIC"
LOOPBACK = "127.0.0.1"
# As long as the processes wait for each other (replicas/cluster.py): a cluster's names may come with its hosts.
NAME_SECONDS = 120.0
# A host that lost its first packet answers the second, after a second (RFC 6298).
SILENT_SECONDS = 3.0
_LISTENS = "0A"  # TCP_LISTEN in Linux's include/net/tcp_states.h.


def own_address(hosts: Sequence[str], index: int) -> str:
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
            raise UserError(
                f"{', '.join((others or hosts)[:3])}: no such host, or no way to it, within {NAME_SECONDS:.0f} s; "
                "check the names (--hosts, TF_CONFIG) and the network",
                75,  # EX_TEMPFAIL: the launcher may try again.
            )
        time.sleep(1)
    if ipaddress.ip_address(address.partition("%")[0]).is_global and not os.environ.get(ALLOWED):
        raise UserError(
            f"{hosts[index]}: its address {address} is public, and who reaches a process's port can run code in it; "
            "use the hosts' addresses in a private network, or --allow_public behind a firewall"
        )
    return address


def names_from_here(hosts: Sequence[str], index: int) -> list[str]:
    """Returns the hosts as this one, `hosts[index]`, can reach them: itself by its address where its name is loopback.

    Debian's installer gives a host's own name 127.0.1.1, where no server of a run on several hosts listens.

    Raises what `own_address` raises.
    """
    own = hosts[index]
    if not _is_loopback(own) or all(map(_is_loopback, hosts)):
        return list(hosts)
    address = own_address(hosts, index)
    return [address if host == own else host for host in hosts]


def route(host: str) -> str:
    """Returns the address from which the kernel would send to a host; "" if it cannot."""
    with contextlib.suppress(OSError):
        family, kind, *_, to = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:  # Sends nothing: connecting asks the kernel for a route.
            probe.connect(to)
            return probe.getsockname()[0]
    return ""


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(OSError):
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    return False


def silent(hosts: Iterable[str], port: int) -> list[str]:
    """Returns the hosts that neither accept nor refuse a connection: their machine or the network to it is down."""
    lost = []
    for host in hosts:
        try:
            socket.create_connection((host, port), SILENT_SECONDS).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            lost.append(host)
    return lost


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
