"""Reads MLPerf logs into records and bad lines, in linear time and bounded memory.

There are two formats. Round v0.6 writes `:::MLL <seconds> <key>: {"value": ..., "metadata": {...}}`; later rounds
write `:::MLLOG {"namespace", "time_ms", "event_type", "key", "value", "metadata": {...}}`. Either may follow any prefix
(`3: `, `[rank 0] `, a byte-order mark), between lines of other output. The reader trusts nothing in a log: bytes that
are not UTF-8, deep JSON, huge numbers, megabyte lines and missing fields become a `BadLine`, never an exception.
"""

import math
import re
from collections.abc import Callable, Iterator
from json import JSONDecodeError, JSONDecoder
from os import PathLike
from typing import NamedTuple

from compliance.log.lines import MAX_LINE_BYTES, TOKEN, token_lines

SECONDS_FORM = b":::MLL "
MLLOG_FORM = b":::MLLOG "
MAX_TEXT = 400
# What a stock program does at a line that its parser does not take: refuse the log, or end with an exception.
REFUSES, CRASHES = "refuses", "crashes"
# How many records of one line are read; a line with more than one is an error anyway.
_MAX_A_LINE = 1000

_SECONDS_LINE = re.compile(r"([\d.]+) ([A-Za-z0-9_]+) ?:\s+(.+)", re.DOTALL | re.ASCII)
_FIELDS = ("time_ms", "key", "value", "metadata")


class Record(NamedTuple):
    """One log record. Times are milliseconds in both formats; `line` counts from 1, as in an editor."""

    key: str
    value: object
    metadata: dict
    time_ms: float
    namespace: str
    event_type: str
    line: int
    text: str


class BadLine(NamedTuple):
    """A line that has the token but is not, or not entirely, a record. Its fields are the parts of a finding.

    `wording` selects the sentence in rules/texts.json, `names` fill it; `key` is the record's key, if it has one.
    `stock`: what the stock parser does at the line (REFUSES or CRASHES); "": it takes or skips it.
    """

    line: int
    text: str
    rule: str
    expected: str
    actual: str
    severity: str = "error"
    wording: str = ""
    names: dict = {}  # noqa: RUF012 (never changed)
    key: str = ""
    stock: str = ""


def form_of(path: str | PathLike) -> str:
    """Returns the format of the log's first record: "seconds" for `:::MLL `, else "mllog"; "" if no line has the token.

    A line that is too long to hold has no format.

    Raises UserError if the file cannot be read.
    """
    form = ""
    for _, line in token_lines(path):
        if line.__class__ is int:
            continue
        place = line.find(TOKEN)
        if line.startswith(SECONDS_FORM, place):
            return "seconds"
        if line.startswith(MLLOG_FORM, place):
            return "mllog"
        form = "mllog"
    return form


def read_log(path: str | PathLike, ruleset: str | None = None) -> Iterator[Record | BadLine]:
    """Yields the records and bad lines of a log, in file order.

    Args:
      ruleset: "0.6.0" reads the seconds format, every other one `:::MLLOG`; None: guess.

    Raises UserError if the file cannot be read.
    """
    if ruleset is None:
        ruleset = "0.6.0" if form_of(path) == "seconds" else "0.7.0"
    if ruleset == "0.6.0":
        token, parse, other = SECONDS_FORM, _parse_seconds, MLLOG_FORM
    else:
        token, parse, other = MLLOG_FORM, _parse_mllog, SECONDS_FORM
    for number, line in token_lines(path):
        if line.__class__ is int:
            about = f"at most {MAX_LINE_BYTES:,} bytes", f"more than {line:,}"
            yield BadLine(number, "", "line-too-long", *about)
            continue
        first = line.find(token)
        if first < 0:
            yield _wrong_form(number, line, token, other)
            continue
        if line.find(token, first + len(token)) < 0:
            yield from parse(line[first:], number)
        else:
            actual = f"{line.count(token)} records"
            yield BadLine(number, _text(line), "line-several-records", "one record per line", actual)
            parts = line.split(token, _MAX_A_LINE + 1)[1 : _MAX_A_LINE + 1]
            for part in parts:
                for one in parse(token + part, number):
                    # The stock parser reads only the last record of a line.
                    skipped = part is not parts[-1] and one.__class__ is BadLine
                    yield one._replace(stock="") if skipped else one


def parse_line(text: str, number: int) -> Record | BadLine:
    """Parses one line of a log that is being written, in the format that its token names."""
    line = text.encode("utf-8", "surrogatepass").strip()
    place = line.find(TOKEN)
    if line.startswith(MLLOG_FORM, place):
        return _parse_mllog(line[place:], number)[0]
    if line.startswith(SECONDS_FORM, place):
        return _parse_seconds(line[place:], number)[0]
    return BadLine(number, _text(line), "line-token", ":::MLLOG or :::MLL", _text(line)[:20])


def _wrong_form(number: int, line: bytes, token: bytes, other: bytes) -> BadLine:
    """Reports a record in the other round's format, which this ruleset does not read."""
    # The stock 0.6.0 parser fails on every line with the token; the other parsers do not see `:::MLL` lines.
    severity = "error" if token == SECONDS_FORM else "advice"
    expected = token.decode().strip()
    if line.find(other) >= 0:
        return BadLine(number, _text(line), "line-other-form", expected, other.decode().strip(), severity)
    actual = _text(line[line.find(TOKEN) :])[:20]
    return BadLine(number, _text(line), "line-token", f"{expected} and a space", actual, severity)


# -------------------------------------------------------------------------------------------------- records

_scan_once = JSONDecoder().scan_once
_PARSE_ERRORS = (ValueError, StopIteration, RecursionError)


# What str.strip removes from Latin-1 text (the stock parser's encoding), without the non-ASCII characters.
_SPACE = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
_START = len(MLLOG_FORM)
_COLONS = TOKEN.count(b":")


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8").strip(_SPACE)
    except UnicodeDecodeError:
        return line.decode("latin-1").strip()


def _scan(text: str) -> tuple[object, int]:
    """Returns (JSON value, its end) for text that begins after the token; JSON allows space before the value."""
    start = _START
    while text.startswith((" ", "\t"), start):
        start += 1
    return _scan_once(text, start)


def _parse_mllog(line: bytes, number: int) -> tuple[Record | BadLine, ...]:
    text = _decode(line)
    try:
        fields, end = _scan_once(text, _START) if text.startswith("{", _START) else _scan(text)
        time_ms = fields["time_ms"]
        metadata = fields["metadata"]
        key = fields["key"]
        value = fields["value"]
    except (*_PARSE_ERRORS, KeyError, TypeError) as error:
        return (_explain(text, number, error),)
    if end != len(text):
        return (_trailing(text, number, end),)
    if key.__class__ is not str:
        return (_field(text, number, "key", "a string", key),)
    if time_ms.__class__ is not int or metadata.__class__ is not dict or not -1e18 < time_ms < 1e18:
        return _odd_fields(fields, text, number)
    entries = len(fields) + len(metadata) + _COLONS
    if value.__class__ is dict:
        entries += len(value)
    namespace, event_type = fields.get("namespace", ""), fields.get("event_type", "")
    record = Record(key, value, metadata, time_ms, namespace, event_type, number, text[:MAX_TEXT])
    # Every entry has a colon: with as many colons as entries, no key occurs twice.
    if text.count(":") != entries and (twice := _written_twice(text)):
        return record, _twice(text, number, twice)
    return (record,)


def _odd_fields(fields: dict, text: str, number: int) -> tuple[Record | BadLine, ...]:
    """The slow path of `_parse_mllog`: the time is not a plain integer, or the metadata is not an object."""
    notes: list[BadLine] = []
    time_ms, metadata = fields["time_ms"], fields["metadata"]
    expected = "a number of milliseconds"
    try:
        # float() accepts numeric strings, as the stock parser does.
        time = float(time_ms)
    except (TypeError, ValueError, OverflowError) as error:
        stock = REFUSES if isinstance(error, ValueError) else CRASHES
        return (_field(text, number, "time_ms", expected, time_ms)._replace(stock=stock),)
    if isinstance(time_ms, str) and not time_ms.isascii():  # which the stock parser reads as Latin-1
        return (_field(text, number, "time_ms", expected, time_ms)._replace(stock=REFUSES),)
    if isinstance(time_ms, bool) or not math.isfinite(time):
        return (_field(text, number, "time_ms", expected, time_ms),)
    if isinstance(time_ms, str):
        notes.append(_field(text, number, "time_ms", "a number of milliseconds", time_ms, "advice"))
    if not isinstance(metadata, dict):
        notes.append(_field(text, number, "metadata", "an object", metadata, "advice"))
        metadata = {}
    if twice := _written_twice(text):
        notes.append(_twice(text, number, twice))
    rest = time, fields.get("namespace", ""), fields.get("event_type", "")
    return Record(fields["key"], fields["value"], metadata, *rest, number, text[:MAX_TEXT]), *notes


def _parse_seconds(line: bytes, number: int) -> tuple[Record | BadLine, ...]:
    text = _decode(line)
    match = _SECONDS_LINE.fullmatch(text, len(SECONDS_FORM))
    if match is None:
        form = ':::MLL <seconds> <key>: {"value": ..., "metadata": {...}}'
        return (BadLine(number, _text(text), "line-form", form, text[:60]),)
    seconds, key, body = match.groups()
    try:
        time_ms = float(seconds) * 1000
    except ValueError:
        return (_field(text, number, "time", "seconds as a number", seconds),)
    try:
        fields, end = _scan_once(body, 0)
    except _PARSE_ERRORS as error:
        return (_not_json(text, number, _reason(error)),)
    if end != len(body):
        return (_trailing(body, number, end),)
    if fields.__class__ is not dict or "value" not in fields:
        # The stock checker skips such a line; that matters if the rules know the key.
        actual = ", ".join(list(fields)[:12]) if isinstance(fields, dict) else type(fields).__name__
        expected = 'an object with "value" and "metadata"'
        about = {"wording": "line-field.missing", "names": {"name": "value"}, "key": key}
        return (BadLine(number, _text(text), "line-field", expected, actual or "{}", **about),)
    metadata = fields.get("metadata")
    notes = ()
    if metadata.__class__ is not dict:
        notes = (_field(text, number, "metadata", "an object", metadata, "advice"),)
        metadata = {}
    if body.count(":") > len(fields) + len(metadata) and (twice := _written_twice(body)):
        notes += (_twice(text, number, twice),)
    return Record(key, fields["value"], metadata, time_ms, "", "", number, text[:MAX_TEXT]), *notes


# --------------------------------------------------------------------------------------------- bad lines


def noting_repeats(repeated: list[tuple[str, object, object]]) -> Callable[[list[tuple[str, object]]], dict]:
    """Returns an `object_pairs_hook` that adds (name, value, later value) of each name with two values to the list."""

    def pairs(items: list[tuple[str, object]]) -> dict:
        entries: dict = {}
        for key, value in items:
            if key in entries and entries[key] != value:
                repeated.append((key, entries[key], value))
            entries[key] = value
        return entries

    return pairs


def _written_twice(text: str) -> str:
    """Returns the first key that an object of the record holds twice with different values, or ''."""
    repeated: list[tuple[str, object, object]] = []
    try:
        JSONDecoder(object_pairs_hook=noting_repeats(repeated)).raw_decode(text, text.index("{"))
    except _PARSE_ERRORS:
        return ""
    return repeated[0][0] if repeated else ""


def _twice(text: str, number: int, key: str) -> BadLine:
    return BadLine(number, _text(text), "line-key-twice", "each name once in an object", f"{key[:80]} twice")


def _explain(text: str, number: int, error: Exception) -> BadLine:
    """Explains what is wrong with a payload that does not parse or lacks a field."""
    if not isinstance(error, (KeyError, TypeError)):
        return _not_json(text, number, _reason(error))
    try:
        fields = _scan(text)[0]
    except _PARSE_ERRORS as parse_error:
        return _not_json(text, number, _reason(parse_error))
    if not isinstance(fields, dict):
        expected = 'an object with "time_ms", "key", "value" and "metadata"'
        actual = f"a JSON {type(fields).__name__}"
        return BadLine(number, _text(text), "line-form", expected, actual, stock=CRASHES)
    missing = [name for name in _FIELDS if name not in fields]
    seconds = "time_ms" in missing and ("time_s" in fields or "time" in fields)
    wording = "line-field.seconds" if seconds else "line-field.missing"
    key = fields.get("key")
    actual = ", ".join(str(name)[:40] for name in list(fields)[:12]) or "{}"
    key = key if isinstance(key, str) else ""
    about = {"wording": wording, "names": {"name": " and ".join(missing)}, "key": key, "stock": CRASHES}
    return BadLine(number, _text(text), "line-field", ", ".join(_FIELDS), actual, **about)


_TOO_DEEP = "brackets nested too deeply"


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, StopIteration):
        return f"no JSON value at character {error.value}"
    return "a number with too many digits"


def _not_json(text: str, number: int, reason: str) -> BadLine:
    stock = CRASHES if reason == _TOO_DEEP else REFUSES
    return BadLine(number, _text(text), "line-json", "one JSON object", reason, stock=stock)


def _trailing(text: str, number: int, end: int) -> BadLine:
    return _not_json(text, number, f"more text after the record: {text[end : end + 40]!r}")


def _field(
    text: str, line: int, name: str, expected: str, actual: object, severity: str = "error"
) -> BadLine:
    about = "line-field", f"{name}: {expected}", text_of(actual)
    return BadLine(line, _text(text), *about, severity, names={"name": name})


def text_of(value: object, limit: int = 80) -> str:
    """Formats a value as JSON-like text of at most `limit` characters; deep or huge values do not raise."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"a {type(value).__name__} too deep or too long to show"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _text(line: bytes | str) -> str:
    shortened = line[:MAX_TEXT]
    return shortened if isinstance(shortened, str) else shortened.decode("utf-8", "replace")


def numeral(value: object) -> float | None:
    """Returns a number, or a text that writes one, as a finite float; None for anything else."""
    try:
        return number(float(value) if isinstance(value, str) else value)
    except ValueError:
        return None


def number(value: object) -> float | None:
    """Returns a finite float, or None for anything else (booleans, text, NaN, integers beyond a float)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        plain = float(value)
    except OverflowError:
        return None
    return plain if math.isfinite(plain) else None
