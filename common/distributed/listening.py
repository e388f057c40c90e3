"""Chooses the address that a process's servers listen on, and makes TensorFlow's server bind to it.

TensorFlow's server runs any graph that reaches its port, and it binds to every interface (`0.0.0.0` in
tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc, which has no option). So `bound_to` puts a function in
front of the C library's `bind`, for one library and for as long as the server starts.
"""

import contextlib
import ctypes
import ipaddress
import os
import platform
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence

from common.errors import UserError

# The launcher's --allow_public sets it.
ALLOWED = "TIMETOTRAIN_ALLOW_PUBLIC"
LOOPBACK = "127.0.0.1"
# As long as the processes wait for each other (replicas/cluster.py): a cluster's names may come with its hosts.
NAME_SECONDS = 120.0

# <elf.h>: tags of the dynamic section, and the relocations of a pointer to a function, by machine.
_STRTAB, _SYMTAB, _RELA, _RELASZ, _JMPREL, _PLTRELSZ = 5, 6, 7, 8, 23, 2
_POINTERS = {"x86_64": (6, 7), "aarch64": (1025, 1026)}
# `use_errno`, so that the library sees the error of the real `bind`.
_BIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, use_errno=True)


class _LinkMap(ctypes.Structure):
    """The start of <link.h>'s struct link_map, which a handle of dlopen points to."""

    _fields_ = [("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_uint64)]


def own_address(hosts: Sequence[str], index: int) -> str:
    """Returns the address by which this process and the others reach each other; LOOPBACK if all names are loopback.

    The kernel's route decides, not the name of this host: Debian's /etc/hosts gives a host's own name 127.0.1.1.

    Args:
      hosts: names or addresses of all processes.

    Raises UserError: no other host's name has an address for `NAME_SECONDS`; or the address is public, and the launcher
    was not told --allow_public.
    """
    others = [host for host in hosts if host != hosts[index]]
    if not others and all(map(_is_loopback, hosts)):
        return LOOPBACK
    deadline = time.monotonic() + NAME_SECONDS
    while not (address := next(filter(None, map(_route, others or hosts)), "")):
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


def _route(host: str) -> str:
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


def sockaddr(given: bytes, address: str) -> bytes:
    """Returns a sockaddr of the same family and port with `address` in place of a wildcard; `given` if it is none.

    An IPv4 socket cannot have an IPv6 address: it gets the loopback, so that it is open to nobody.
    """
    (family,) = struct.unpack_from("=H", given)
    target = ipaddress.ip_address(address.partition("%")[0])
    if family == socket.AF_INET and given[4:8] == bytes(4):
        packed = target.packed if target.version == 4 else socket.inet_aton(LOOPBACK)
        return given[:4] + packed + given[8:]
    if family == socket.AF_INET6 and given[8:24] in (bytes(16), bytes(10) + b"\xff\xff" + bytes(4)):
        mapped = target.packed if target.version == 6 else bytes(10) + b"\xff\xff" + target.packed
        return given[:8] + mapped + given[24:]
    return given


@contextlib.contextmanager
def bound_to(address: str, libraries: Sequence[str]) -> Iterator[None]:
    """While it holds, every wildcard that the libraries bind to becomes `address`.

    Nothing changes on machines other than x86_64 and aarch64, or if no library is loaded; a warning says so.

    Args:
      libraries: paths of shared libraries.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.bind.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint]

    def bind(number: int, where: int, size: int) -> int:
        data = sockaddr(ctypes.string_at(where, size), address)
        return libc.bind(number, ctypes.cast(ctypes.create_string_buffer(data, size), ctypes.c_void_p), size)

    ours = _BIND(bind)
    pointer = ctypes.cast(ours, ctypes.c_void_p).value
    slots = [slot for library in libraries for slot in _slots(library, b"bind")]
    if not slots:
        print(
            f"warning: this machine's TensorFlow listens on every interface, not on {address} alone; whoever reaches "
            "its port can run code: use a firewall",
            file=sys.stderr,
        )
    before = [slot.value for slot in slots]
    for slot in slots:
        _set(libc, slot, pointer)
    try:
        yield
    finally:
        for slot, value in zip(slots, before):
            _set(libc, slot, value)


def _slots(library: str, name: bytes) -> list[ctypes.c_uint64]:
    """Returns the library's pointers to the function `name`, from the relocations in its dynamic section."""
    kinds = _POINTERS.get(platform.machine(), ())
    try:
        handle = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)._handle
    except OSError:
        return []
    loaded = _LinkMap.from_address(handle)
    entries, at = {}, loaded.dynamic
    while tag := ctypes.c_int64.from_address(at).value:
        entries[tag] = ctypes.c_uint64.from_address(at + 8).value
        at += 16
    slots = []
    for table, size in ((_RELA, _RELASZ), (_JMPREL, _PLTRELSZ)):
        # Struct Elf64_Rela: offset, info (symbol and kind), addend.
        data = ctypes.string_at(entries[table], entries[size]) if table in entries else b""
        for offset, info, _ in struct.iter_unpack("=QQq", data):
            if info & 0xFFFFFFFF in kinds:
                # Struct Elf64_Sym has 24 bytes and begins with its name's place among the strings.
                text = ctypes.c_uint32.from_address(entries[_SYMTAB] + 24 * (info >> 32)).value
                if ctypes.string_at(entries[_STRTAB] + text, len(name) + 1) == name + b"\0":
                    slots.append(ctypes.c_uint64.from_address(loaded.base + offset))
    return slots


def _set(libc: ctypes.CDLL, slot: ctypes.c_uint64, value: int) -> None:
    """Writes a pointer into a page that the loader may have made read-only (RELRO)."""
    size = os.sysconf("SC_PAGE_SIZE")
    page = ctypes.addressof(slot) & -size
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(size), 1 | 2) == 0:  # PROT_READ | PROT_WRITE
        slot.value = value
