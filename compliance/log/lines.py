"""Finds the lines of a log that hold a record's token, in linear time and bounded memory."""

from collections.abc import Iterable, Iterator
from os import PathLike

from common.errors import UserError

TOKEN = b":::MLL"
CHUNK_BYTES = 1 << 20
# Real records are under 100 kB (the longest published one has 5 kB). Longer lines are skipped.
MAX_LINE_BYTES = 16 << 20


def token_lines(path: str | PathLike) -> Iterator[tuple[int, bytes | int]]:
    """Yields (line number, line) for each line that holds the token; (number, size) for a line too long to hold.

    Lines end at LF or CRLF. A lone CR also ends a record's line, as in Python's text mode, but does not count as a
    line, because progress bars write it. Exception: a file that begins with CRs and no LF is a CR-only file.
    """
    for data, number in _blocks(path):
        lines = scan(data, number) if isinstance(data, bytes) else [(number, data)]
        yield from split(lines) if isinstance(data, bytes) and b"\r" in data else lines


def split(lines: Iterable[tuple[int, bytes | int]]) -> Iterator[tuple[int, bytes | int]]:
    """Yields the parts between CRs that hold the token, with the numbers of their lines."""
    for number, line in lines:
        if line.__class__ is bytes and b"\r" in line:
            for part in line.split(b"\r"):
                if TOKEN in part:
                    yield number, part
        else:
            yield number, line


def _blocks(path: str | PathLike) -> Iterator[tuple[bytes | int, int]]:
    """Yields (whole lines, the number of the first); (size, number) of a line with the token that is too long."""
    try:
        with open(path, "rb") as file:
            chunk = file.read(CHUNK_BYTES)
            cr_only = b"\n" not in chunk and b"\r" in chunk.rstrip(b"\r")
            number, pieces, size = 1, [], 0
            while chunk:
                if cr_only:
                    chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
                end = chunk.rfind(b"\n") + 1
                if not end:
                    pieces.append(chunk)
                    size += len(chunk)
                    if size > MAX_LINE_BYTES:
                        has_token = TOKEN in b"".join(pieces)
                        has_token |= _skip_line(file, pieces[-1][-len(TOKEN) :])
                        if has_token:
                            yield size, number
                        number, pieces, size = number + 1, [], 0
                else:
                    data = b"".join((*pieces, chunk[:end])) if pieces else chunk[:end]
                    pieces, size = [chunk[end:]], len(chunk) - end
                    yield data, number
                    number += data.count(b"\n")
                chunk = file.read(CHUNK_BYTES)
            if size:
                yield b"".join(pieces), number
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); name a readable log file") from None


def _skip_line(file, tail: bytes) -> bool:
    """Reads past the end of the line. Returns True if the skipped part, after `tail`, holds the token."""
    has_token = False
    while chunk := file.read(CHUNK_BYTES):
        end = chunk.find(b"\n")
        has_token |= TOKEN in tail + (chunk if end < 0 else chunk[:end])
        if end >= 0:
            file.seek(end + 1 - len(chunk), 1)
            break
        tail = chunk[-len(TOKEN) :]
    return has_token


def scan(data: bytes, number: int) -> Iterator[tuple[int, bytes]]:
    """Yields (line number, line) for lines of `data` that hold the token; its first line is line `number`."""
    counted, place = 0, data.find(TOKEN)
    while place >= 0:
        start = data.rfind(b"\n", counted, place) + 1 or counted
        end = data.find(b"\n", place)
        if end < 0:
            end = len(data)
        if start > counted:
            number += data.count(b"\n", counted, start)
        yield number, data[start:end]
        counted, number = end + 1, number + 1
        place = data.find(TOKEN, counted)
