"""Makes TensorFlow's server bind to one address.

Reason: the server runs any graph that reaches its port, and it binds to every interface (`0.0.0.0` in
tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc, which has no option; gRPC has no variable for it). A relay
would leave that socket open, and a firewall or a network namespace needs root. So `bound_to` puts a function in front
of the C library's `bind`, for as long as the server starts; then it asks the kernel where the server listens, and
trusts nothing else. An option for the address in TensorFlow's ServerDef would remove this file.
"""

import contextlib
import ctypes
import ipaddress
import os
import platform
import socket
import struct
from collections.abc import Iterator, Sequence

from common.distributed import listening
from common.errors import UserError

# <elf.h>: tags of the dynamic section, and the relocations of a pointer to a function, by machine.
_STRTAB, _SYMTAB, _RELA, _RELASZ, _JMPREL, _PLTRELSZ = 5, 6, 7, 8, 23, 2
_POINTERS = {"x86_64": (6, 7), "aarch64": (1025, 1026)}
# `use_errno`, so that the library sees the error of the real `bind`.
_BIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, use_errno=True)


class _LinkMap(ctypes.Structure):
    """The start of <link.h>'s struct link_map, which a handle of dlopen points to."""

    _fields_ = [("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_uint64)]


def sockaddr(original: bytes, address: str) -> bytes:
    """Returns a sockaddr of the same family and port with `address` in place of a wildcard; `original` if it is none.

    An IPv4 socket cannot have an IPv6 address: it gets the loopback, so that it is open to nobody.
    """
    (family,) = struct.unpack_from("=H", original)
    target = ipaddress.ip_address(address.partition("%")[0])
    if family == socket.AF_INET and original[4:8] == bytes(4):
        packed = target.packed if target.version == 4 else socket.inet_aton(listening.LOOPBACK)
        return original[:4] + packed + original[8:]
    if family == socket.AF_INET6 and original[8:24] in (bytes(16), bytes(10) + b"\xff\xff" + bytes(4)):
        mapped = target.packed if target.version == 6 else bytes(10) + b"\xff\xff" + target.packed
        return original[:8] + mapped + original[24:]
    return original


@contextlib.contextmanager
def bound_to(address: str, port: int, libraries: Sequence[str]) -> Iterator[None]:
    """While it holds, every wildcard that the libraries bind to becomes `address`.

    Args:
      port: what the caller lets them bind to.
      libraries: paths of shared libraries.

    Raises UserError if `port` listens on every interface at the end, and the launcher was not told --allow_public.
    So it is on machines other than x86_64 and aarch64.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.bind.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint]

    def bind(number: int, where: int, size: int) -> int:
        data = sockaddr(ctypes.string_at(where, size), address)
        return libc.bind(number, ctypes.cast(ctypes.create_string_buffer(data, size), ctypes.c_void_p), size)

    ours = _BIND(bind)
    pointer = ctypes.cast(ours, ctypes.c_void_p).value
    slots = [slot for library in libraries for slot in _slots(library, b"bind")]
    before = [slot.value for slot in slots]
    for slot in slots:
        _set(libc, slot, pointer)
    try:
        yield
    finally:
        for slot, value in zip(slots, before):
            _set(libc, slot, value)
    addresses = [each.address for each in listening.listeners() if each.port == port]
    if any(ipaddress.ip_address(each).is_unspecified for each in addresses) and not os.environ.get(
        listening.ALLOWED
    ):
        raise UserError(
            f"TensorFlow's server listens on every interface, not on {address} alone, and who reaches port {port} can "
            "run code in it; use --replicas=pjrt, or --allow_public behind a firewall"
        )


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
