"""Tests the reading of logs: both forms, real line numbers, and lines that are not records."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from compliance.log import lines
from compliance.log.logs import _MAX_A_LINE as MAX_A_LINE
from compliance.log.logs import BadLine, Record, form_of, parse_line, read_log

RECORD = {
    "namespace": "main", "time_ms": 1000, "event_type": "POINT_IN_TIME", "key": "seed", "value": 7,
    "metadata": {"lineno": 3},
}  # fmt: skip
LINE = ":::MLLOG " + json.dumps(RECORD)
SECONDS = ':::MLL 12.5 seed: {"value": 7, "metadata": {"lineno": 3}}'


def records(tmp_path, content, ruleset=None):
    path = tmp_path / "log.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_log(path, ruleset))


def test_a_record_of_the_json_form(tmp_path):
    (record,) = records(tmp_path, LINE + "\n")
    assert record[:7] == ("seed", 7, {"lineno": 3}, 1000, "main", "POINT_IN_TIME", 1)
    assert record.text == LINE


def test_a_record_of_the_seconds_form_has_milliseconds(tmp_path):
    (record,) = records(tmp_path, SECONDS + "\n")
    assert record[:7] == ("seed", 7, {"lineno": 3}, 12500.0, "", "", 1)


@pytest.mark.parametrize(("content", "form"), [(LINE, "mllog"), (SECONDS, "seconds"), ("nothing", "")])
def test_the_form_of_the_first_record(tmp_path, content, form):
    (tmp_path / "log.txt").write_text("some output\n" + content)
    assert form_of(tmp_path / "log.txt") == form


@pytest.mark.parametrize("prefix", ["0: ", "[1,3]<stdout>:", "\ufeff", "\t ", "\x1b[0m", 'rank "2" {'])
def test_prefixes_are_passed_over(tmp_path, prefix):
    for line in (LINE, SECONDS):
        (record,) = records(tmp_path, prefix + line + "  \n")
        assert (record.key, record.value) == ("seed", 7)


@pytest.mark.parametrize("more", [-1, 0, 1, 500])
def test_of_a_line_with_very_many_records_the_first_thousand_are_read(tmp_path, more):
    results = records(tmp_path, LINE * (MAX_A_LINE + more))
    assert len([one for one in results if isinstance(one, Record)]) == MAX_A_LINE + min(more, 0)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_numbers_are_those_of_an_editor(tmp_path, end):
    results = records(tmp_path, end.join(["first", LINE, "", "", LINE, LINE]) + end)
    assert [record.line for record in results] == [2, 5, 6]


def test_a_progress_bar_counts_as_one_line(tmp_path):
    results = records(tmp_path, "1%\r2%\r3%\r" + LINE + "\n" + LINE + "\n")
    assert [record.line for record in results] == [1, 2]


def test_bytes_that_are_not_utf8_are_read(tmp_path):
    name = b'":::MLLOG {"key": "submission_org", "value": "Universit\xe4t", "time_ms": 1, "metadata": {}}\n'
    assert records(tmp_path, name)[0].value == "Universität"
    assert records(tmp_path, "\xff\xfe".encode("latin-1") + LINE.encode("utf-16-le")) == []


def test_several_records_on_a_line_are_read_and_reported(tmp_path):
    results = records(tmp_path, LINE + " " + LINE + "\n")
    assert [type(one) for one in results] == [BadLine, Record, Record]
    assert results[0].rule == "line-several-records"


BROKEN = {
    "not json": ("line-json", ":::MLLOG hello"), "cut": ("line-json", LINE[:60]),
    "more behind": ("line-json", LINE + " {}"),
    "too many digits": ("line-json", LINE.replace("7", "9" * 5000)),
    "deep": ("line-json", ":::MLLOG " + "[" * 200_000),
    "deep inside": ("line-json", LINE.replace(": 7", ": " + "[" * 100_000)),
    "a list": ("line-form", ":::MLLOG [1, 2]"), "a number": ("line-form", ":::MLLOG 17"),
    "null": ("line-form", ":::MLLOG null"), "no time": ("line-field", LINE.replace("time_ms", "time_s")),
    "no key": ("line-field", LINE.replace('"key"', '"kee"')),
    "no value": ("line-field", LINE.replace('"value"', '"vale"')),
    "no metadata": ("line-field", LINE.replace("metadata", "meta")),
    "a null time": ("line-field", LINE.replace("1000", "null")),
    "a worded time": ("line-field", LINE.replace("1000", '"noon"')),
    "an endless time": ("line-field", LINE.replace("1000", "9" * 400)),
    "a numeric key": ("line-field", LINE.replace('"seed"', "5")),
    "seconds without value": ("line-field", SECONDS.replace("value", "vale")),
    "seconds without an object": ("line-field", ":::MLL 1.5 seed: 3"),
    "seconds without a time": ("line-form", ":::MLL seed: {}"),
    "seconds with dots": ("line-field", SECONDS.replace("12.5", "1.2.3")),
    "seconds cut": ("line-json", SECONDS[:-3]),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_lines_are_bad_lines(tmp_path, case):
    rule, line = BROKEN[case]
    (bad,) = records(tmp_path, "one\n" + line + "\n")
    assert isinstance(bad, BadLine)
    assert (bad.rule, bad.line, bad.severity) == (rule, 2, "error")
    assert len(bad.text) <= 400


def test_odd_but_readable_fields_are_remarks(tmp_path):
    for old, new in (("1000", '"1000"'), ('{"lineno": 3}', "null")):
        record, bad = records(tmp_path, LINE.replace(old, new))
        assert (type(record), bad.severity) == (Record, "advice")


def test_a_key_written_twice_is_an_error_only_when_the_values_differ(tmp_path):
    twice = LINE.replace('"value": 7', '"value": 8, "value": 7')
    record, bad = records(tmp_path, twice)
    assert (record.value, bad.rule, bad.severity) == (7, "line-key-twice", "error")
    assert len(records(tmp_path, twice.replace("8", "7"))) == 1
    assert len(records(tmp_path, LINE.replace('"main"', '"a:b:c"'))) == 1


def test_nan_is_read_as_python_reads_it(tmp_path):
    assert records(tmp_path, LINE.replace("7", "NaN"))[0].value != 0


def test_the_other_form_is_an_error_only_where_the_stock_parser_fails_on_it(tmp_path):
    assert [one.severity for one in records(tmp_path, SECONDS + "\n", "0.7.0")] == ["advice"]
    assert [one.severity for one in records(tmp_path, LINE + "\n", "0.6.0")] == ["error"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "line",
    [
        "x" * 10_000_000 + LINE,
        LINE.replace(": 7", ': "' + "y" * 10_000_000 + '"'),
        LINE.replace(": 7", ": [" + "1," * 3_000_000 + "1]"),
        ":::MLLOG " * 1_000_000,
        ":::MLLOG" * 1_000_000,
        LINE.replace(": 7", ": {" + '"a": 0, ' * 1_000_000 + '"b": 1}'),
    ],
    ids=["prefix", "string", "list", "tokens", "tokens without space", "twice"],
)
def test_a_line_of_ten_megabytes_takes_linear_time(tmp_path, line):
    count = sum(1 for _ in read_log(write(tmp_path, line + "\n" + LINE), "0.7.0"))
    assert count >= 2


def write(tmp_path, content):
    path = tmp_path / "log.txt"
    path.write_text(content)
    return path


def test_a_line_too_long_to_hold_is_reported_and_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 5000)
    monkeypatch.setattr(lines, "CHUNK_BYTES", 1000)
    for long in ("z" * 9000 + LINE + "z" * 9000, LINE[:100] + "z" * 20_000):
        bad, record = read_log(write(tmp_path, f"one\n{long}\n{LINE}\n"), "0.7.0")
        assert (bad.rule, bad.line, record.line) == ("line-too-long", 2, 3)
    assert [one.line for one in read_log(write(tmp_path, "z" * 20_000 + "\n" + LINE), "0.7.0")] == [2]
    path = write(tmp_path, f":::MLLOG {'z' * 20_000}\n:::MLL 1.0 run_start: {{}}\n")
    assert form_of(path) == "seconds"
    assert [one.rule for one in read_log(path) if isinstance(one, BadLine)][0] == "line-too-long"
    assert form_of(write(tmp_path, f":::MLLOG {'z' * 20_000}\n")) == form_of(write(tmp_path, "x\n")) == ""
    assert form_of(write(tmp_path, ":::MLLX 1\n")) == "mllog"


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.sampled_from([LINE, "x", "", "\r", "\r\n", LINE[:40], "y" * 70]), max_size=12),
    chunk=st.integers(1, 400),
)
def test_where_the_chunks_end_makes_no_difference(tmp_path_factory, parts, chunk):
    path = tmp_path_factory.mktemp("chunks") / "log.txt"
    path.write_bytes(("\n" + "\n".join(parts)).encode())
    whole = list(read_log(path, "0.7.0"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        assert list(read_log(path, "0.7.0")) == whole


def test_a_single_line_is_read_in_its_own_form():
    assert parse_line(LINE + "\n", 4).line == 4
    assert parse_line(SECONDS, 1).time_ms == 12500
    assert parse_line("hello", 1).rule == "line-token"


def test_a_missing_file_is_one_line():
    with pytest.raises(UserError, match="cannot be read"):
        list(read_log("/nowhere/log.txt"))
