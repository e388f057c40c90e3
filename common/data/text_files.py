"""Reads people's text files: texts, names, lists and CSV files, in any usual encoding. TensorFlow-free.

A byte-order mark at the start is removed. UTF-16 and UTF-32 are decoded if the file has the mark, otherwise refused.
UTF-8 is the encoding of every other file. A line feed ends a line, with or without a carriage return before it; where
most lines end in a carriage return alone, so do all. Gzip files are recognized by their content.
"""

import codecs
import contextlib
import dataclasses
import gzip
import io
import os
import re
import sys
import unicodedata
import zlib
from collections.abc import Iterator
from typing import IO

from common.errors import UserError

MOST_LINE = 1 << 20  # Characters of a line. A book has about 1 MB, so a longer line is not a sentence.
_HEAD = 1 << 16  # Bytes at the start that show the encoding and the line ends.
_GZIP = b"\x1f\x8b"  # RFC 1952, section 2.3.1.
# Unicode, section 23.8: UTF-32's little-endian mark starts with UTF-16's, so it comes first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Starts of files that are not text, from their formats' specifications, and what they are.
_KINDS = (
    (b"PK\x03\x04", "a zip file, to be unpacked, or one of Excel or Word"),
    (b"%PDF", "a PDF"),
    (b"PAR1", "Parquet"),
    (b"\xd0\xcf\x11\xe0", "a file of an old Excel or Word"),
    (b"{\\rtf", "formatted text (RTF)"),
    *(
        (start, "a picture or a video")
        for start in (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"\0\0\0")
    ),
    *(
        (start, "a compressed file, to be unpacked")
        for start in (b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!", b"\x28\xb5\x2f\xfd")
    ),
)
# Characters without width that editors and web pages leave in names.
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200e\u200f\u2060\ufeff\u00ad"))
_TAR = slice(257, 262)  # POSIX.1-1988: here a tar file has "ustar".
_MOST_NULS = 0.05  # UTF-16 has a NUL per letter of ASCII; texts of other kinds have none.
_NOT_DECODED = re.compile("[\ud800-\udfff]")
NOT_UTF8, NUL = "not UTF-8", "has a NUL character"
TOO_LONG = f"longer than {MOST_LINE:,} characters"
SAVE = "save it as UTF-8"


@dataclasses.dataclass(frozen=True)
class Line:
    """A line without its end; `text` is None if it is too long or cannot be decoded, and `fault` says which."""

    number: int
    text: str | None
    fault: str = ""


def normal(name: str) -> str:
    """Returns a name in one spelling: Unicode's composed form (NFC), single spaces, none at the ends, no _INVISIBLE.

    Systems spell an accented letter in two ways, and editors add spaces, so one class can have several spellings.
    """
    return " ".join(unicodedata.normalize("NFC", name).translate(_INVISIBLE).split())


def lines(path: str | os.PathLike) -> Iterator[Line]:
    """Yields the lines of a text file, "-" for standard input; holds one line in memory.

    Raises UserError if the file cannot be read, or it is not text; the message names the file.
    """
    name, number = os.fspath(path), 0
    with _sound(name) as (head, file, encoding):
        start = head.decode(encoding, "ignore")
        lone = start.count("\r") - start.count("\r\n") > start.count("\n")
        end, ends = ("", ("\r", "\n")) if lone else ("\n", "\n")
        # Bytes that are not UTF-8 become single surrogates, so that the other lines can be read.
        faults = "surrogateescape" if encoding == "utf-8" else "strict"
        reader = io.TextIOWrapper(file, encoding, faults, newline=end)
        try:
            for number, text in enumerate(iter(lambda: reader.readline(MOST_LINE + 1), ""), 1):
                if len(text) > MOST_LINE and not text.endswith(ends):
                    while text and not text.endswith(ends):
                        text = reader.readline(MOST_LINE)
                    yield Line(number, None, TOO_LONG)
                elif _NOT_DECODED.search(text):
                    yield Line(number, None, NOT_UTF8)
                else:
                    yield Line(number, text.removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise UserError(f"{name}: after line {number}: broken {encoding.upper()}; {SAVE}") from error


def first_lines(path: str | os.PathLike, count: int) -> list[str]:
    """Returns at most `count` lines of the first _HEAD bytes, whole but for the first; raises UserError as `whole`."""
    with _sound(os.fspath(path)) as (head, _, encoding):
        texts = re.split("\r\n|\r|\n", head.decode(encoding, "ignore").removeprefix("\ufeff"))
    return texts[: count if len(head) < _HEAD else min(count, max(1, len(texts) - 1))]


def whole(path: str | os.PathLike) -> str:
    """Returns a text file with lines of any length; a line feed ends each.

    Raises UserError if the file cannot be read, or it is not text; the message names the file.
    """
    name = os.fspath(path)
    with _sound(name) as (_, file, encoding):
        content = file.read()
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start} is not {encoding.upper()}; {SAVE}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


@contextlib.contextmanager
def _sound(name: str) -> Iterator[tuple[bytes, IO[bytes], str]]:
    """Yields a text file's beginning, the file open behind its byte-order mark, and its encoding.

    Raises UserError if it cannot be read, also in the `with` block, or begins like another kind of file.
    """
    try:
        if name != "-" and os.path.exists(name) and not os.path.isfile(name):
            raise UserError(f"{name}: not a regular file; name a text file")
        with _open(name) as file:
            head = file.read(_HEAD)
            kind = next((what for start, what in _KINDS if head.startswith(start)), None)
            kind = "a tar file, to be unpacked" if head[_TAR] == b"ustar" else kind
            if kind:
                raise UserError(f"{name}: no text: {kind}; name a text file, in UTF-8")
            mark, encoding = next(((m, e) for m, e in _MARKS if head.startswith(m)), (b"", "utf-8"))
            if encoding == "utf-8" and head.count(0) > _MOST_NULS * len(head):
                raise UserError(
                    f"{name}: no text: it has NULs, as UTF-16 without a mark and binary files; {SAVE}"
                )
            file.seek(len(mark))
            yield head, file, encoding
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {name}: {reason}; name a good file, or get a good copy") from error


def read(path: str | os.PathLike, fix: str = SAVE) -> list[str]:
    """Returns the lines of a small text file, such as a list of names.

    Raises UserError if the file cannot be read, or a line is not text; the message names file and line.

    Args:
      fix: the end of an error's message.
    """
    texts = []
    for line in lines(path):
        if line.text is None or "\0" in line.text:
            raise UserError(f"{os.fspath(path)}: line {line.number}: {line.fault or NUL}; {fix}")
        texts.append(line.text)
    return texts


def _open(name: str) -> IO[bytes]:
    """Opens a file or standard input, gzip too."""
    file: IO[bytes] = io.BytesIO(sys.stdin.buffer.read()) if name == "-" else open(name, "rb")  # noqa: SIM115
    packed = file.read(len(_GZIP)) == _GZIP
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[return-value]
