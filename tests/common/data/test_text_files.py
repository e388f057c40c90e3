"""Tests readers of people's texts, lists and CSV files: encodings, marks, lines, columns; and that nothing crashes."""

import csv
import gzip
import io
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.data import given_splits, table_examples, tables, text_files
from common.data.partners import Partners
from common.data.report import Report
from common.errors import UserError

TEXT = "größe\nzweite Zeile\n日本\n"


def write_text(folder, content, name="text.txt"):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_text_is_the_same_in_every_encoding_with_a_mark(tmp_path, encoding, ending, packed):
    content = TEXT.replace("\n", ending).encode(encoding)
    path = write_text(tmp_path, gzip.compress(content) if packed else content)
    assert text_files.read(path) == TEXT.split("\n")[:-1]


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le"])
def test_utf16_is_read_in_both_orders_with_a_mark_and_refused_without(tmp_path, encoding):
    path = write_text(tmp_path, ("\ufeff" + TEXT).encode(encoding))
    assert text_files.read(path)[0] == "größe"
    path = write_text(tmp_path, TEXT.encode(encoding))
    with pytest.raises(
        UserError, match="text.txt: no text: it has NULs, as UTF-16 without a mark and binary files; save"
    ):
        text_files.read(path)


def test_a_line_that_is_no_utf8_has_its_number(tmp_path):
    path = write_text(tmp_path, b"a\nb\xe9c\nd")
    assert [(line.number, line.text, line.fault) for line in text_files.lines(path)] == [
        (1, "a", ""),
        (2, None, "not UTF-8"),
        (3, "d", ""),
    ]
    with pytest.raises(UserError, match="text.txt: line 2: not UTF-8; save it as UTF-8"):
        text_files.read(path)
    with pytest.raises(UserError, match="text.txt: line 30: has a NUL character; name another file"):
        text_files.read(write_text(tmp_path, b"a\n" * 29 + b"b\0\n"), "name another file")
    assert text_files.whole(write_text(tmp_path, b"a\n\0" + b"b" * 99)) == "a\n\0" + "b" * 99
    with pytest.raises(UserError, match="text.txt: after line 1: broken UTF-16-LE"):
        text_files.read(write_text(tmp_path, "a\n".encode("utf-16") + b"\x00\xd8\x0a"))


def test_only_the_ends_of_lines_end_lines(tmp_path):
    path = write_text(tmp_path, "a\u2028b\x0cc\x85d\r\n\n\re\n".encode())
    assert text_files.read(path) == ["a\u2028b\x0cc\x85d", "", "\re"]


def test_a_long_line_is_a_fault_and_takes_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MOST_LINE", 10)
    monkeypatch.setattr(text_files, "_HEAD", 4)
    path = write_text(tmp_path, b"a" * 10 + b"\n" + b"b" * 11 + b"\n" + b"c" * 50 + b"\nd\n" + b"e" * 30)
    assert [line.text for line in text_files.lines(path)] == ["a" * 10, None, None, "d", None]
    with pytest.raises(UserError, match="text.txt: line 2: longer than 1,048,576 characters"):
        text_files.read(path)
    with pytest.raises(UserError, match="list.csv: line 1: longer than 1,048,576 characters"):
        tables.read(write_text(tmp_path, b"path,labels\na,b\n", "list.csv"))


def test_what_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cannot read .*nowhere: No such file"):
        text_files.read(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not a regular file; name a text file"):
        text_files.read(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="not a regular file"):
        text_files.read(tmp_path / "pipe")
    with pytest.raises(UserError, match="cannot read .*cut: Compressed file ended"):
        text_files.read(write_text(tmp_path, gzip.compress(b"a\n")[:-6], "cut"))


def test_one_name_has_one_spelling():
    assert text_files.normal("  cafe\u0301 \t au  lait ") == text_files.normal("caf\xe9 au lait")
    assert text_files.normal("\ufeffcaf\u00ade\u0301\u200b ") == "café"


def test_a_list_of_pictures_is_read_in_any_spelling(tmp_path):
    """Pascal VOC's lists: names with spaces, suffixes, folders or flags, and accents in both of Unicode's forms."""
    names = {"a b.jpg", "caf\xe9.jpg", "c.jpg", "d.jpg"}
    for name in names:
        (tmp_path / name).write_text(name)
    lines = ["a b", "cafe\u0301.jpg", "JPEGImages\\c.jpg", "d  1", "nowhere"]
    for encoding in ("utf-8-sig", "utf-16"):
        path = write_text(tmp_path, "\r\n".join(lines).encode(encoding), "train.txt")
        report = Report()
        assert given_splits.of_list(path, Partners(tmp_path), report) == names
        (line,) = report.lines
        assert "train.txt: line 5: nowhere" in line


ROWS = [("a.mp4", "run", "train"), ("b.mp4", "walk, slow", "val")]


def table(folder, separator=",", encoding="utf-8", heads=("path", "label", "split"), rows=ROWS):
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator, lineterminator="\r\n")
    writer.writerows([heads, *rows] if heads else rows)
    return write_text(folder, text.getvalue().encode(encoding), "list.csv")


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_table_is_the_same_with_every_separator_and_encoding(tmp_path, separator, encoding):
    examples = table_examples.examples(tables.read(table(tmp_path, separator, encoding)))
    assert [(e.path.name, e.label, e.split) for e in examples] == ROWS


def test_a_table_may_be_packed_and_have_lines_inside_quotes(tmp_path):
    path = table(tmp_path, rows=[("a.mp4", "two\r\nlines", "train")])
    path.write_bytes(gzip.compress(path.read_bytes()))
    (example,) = table_examples.examples(tables.read(path))
    assert (example.label, example.line) == ("two lines", 3)


def test_columns_have_the_usual_names_in_any_case_and_order(tmp_path):
    rows = [(label, path, split) for path, label, split in ROWS]
    examples = table_examples.examples(
        tables.read(table(tmp_path, heads=(" Class", "File_Name", "Subset "), rows=rows))
    )
    assert [(e.path.name, e.label, e.split) for e in examples] == ROWS


def test_a_table_without_a_line_of_names_has_paths_and_labels(tmp_path):
    (tmp_path / "a.mp4").touch()
    examples = table_examples.examples(
        tables.read(table(tmp_path, heads=None, rows=[row[:2] for row in ROWS]))
    )
    assert [(e.path.name, e.label, e.split, e.line) for e in examples] == [
        ("a.mp4", "run", "", 1),
        ("b.mp4", "walk, slow", "", 2),
    ]


@pytest.mark.parametrize(
    ("rows", "there", "first"),
    [
        (["a.mp4,run", "b.mp4,walk"], "b.mp4", 1),
        (["a,run", "b,walk"], "a/", 1),
        (["clip_id,action", "b.mp4,walk"], "b.mp4", 0),
        (["video,label", "b,walk"], "video/", 2),
        ([",path,label", "0,b.mp4,walk"], "b.mp4", 2),
        (["train,path,label", "1,b,walk"], "train/", 2),
        (["videos,label", "b,walk"], "videos/", 0),
        (["frames,action", "frames/b,walk"], "frames/", 0),
    ],
)
def test_a_first_line_is_a_row_if_its_file_or_the_next_ones_are_there(tmp_path, rows, there, first):
    (tmp_path / there).mkdir() if there.endswith("/") else (tmp_path / there).touch()
    path = write_text(tmp_path, "\n".join(rows).encode(), "list.csv")
    if first:
        assert table_examples.examples(tables.read(path))[0].line == first
    else:
        with pytest.raises(
            UserError, match="columns (action|frames|label), .*; expected path,label, or a first line"
        ):
            table_examples.examples(tables.read(path))


def test_cells_have_no_spaces_at_their_ends_and_splits_one_case(tmp_path):
    rows = [("a.mp4 ", "run ", "Train"), ("b.mp4", " run", "TRAIN "), ("c.mp4", "cafe\u0301", "train")]
    examples = table_examples.examples(tables.read(table(tmp_path, rows=rows)))
    assert [(e.path.name, e.label, e.split) for e in examples] == [
        ("a.mp4", "run", "train"),
        ("b.mp4", "run", "train"),
        ("c.mp4", "caf\xe9", "train"),
    ]


def test_paths_are_relative_to_the_file_or_its_folder_and_may_have_backslashes(tmp_path):
    (tmp_path / "clips" / "run").mkdir(parents=True)
    (tmp_path / "lists").mkdir()
    (tmp_path / "clips/run/a.mp4").touch()
    path = table(tmp_path / "lists", rows=[("clips\\run\\a.mp4", "run", "train")])
    (example,) = table_examples.examples(tables.read(path))
    assert example.path == tmp_path / "clips/run/a.mp4"


def test_a_name_that_no_file_can_have_is_an_example_that_is_missing(tmp_path):
    examples = table_examples.examples(
        tables.read(table(tmp_path, heads=("path", "label"), rows=[("x\\" * 3000, "run")]))
    )
    assert len(examples) == 1 and not os.path.isfile(examples[0].path)
    with pytest.raises(UserError, match="cannot read .*: File name too long"):
        text_files.read("x" * 5000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"path": "a.jpg", "label": "x"}]', "list.csv: a list in JSON, which is not read; write a CSV"),
        ('{"path": "a.jpg"}', "list.csv: a list in JSON"),
        ("v 0.mp4 0\n", "list.csv: a list divided by blanks, as of mmaction2"),
        ("b/c.jpg dog\n", "list.csv: a list divided by blanks"),
        ("[\n", "list.csv: a list in JSON"),
        ("path,label\n", "list.csv: no rows below the line of column names"),
        ("[1] a.jpg,cat\n", "list.csv: no rows below"),
        ("{id}.jpg,cat\n", "list.csv: no rows below"),
        ("", "list.csv: no rows; expected path,label"),
        ("x,y\na,b\n", "list.csv: columns x, y; expected path,label"),
        ("path,label\na.mp4,run\nb.mp4\n", "list.csv: line 3: no label; give every row all columns"),
        ("path,label\na.mp4,\n", "list.csv: line 2: no label"),
        ("path,label\na.mp4,run,fast\n", "line 2: 3 cells, expected 2; put a cell with commas in quotes"),
        (
            'path,label\na.mp4,"run\nb.mp4,walk\n',
            "list.csv: line 3: unexpected end of data; correct the quotes",
        ),
        ("path,label\na.mp4,r\0n\n", "list.csv: line 2: has a NUL character"),
    ],
)
def test_a_bad_table_is_one_line_with_file_and_number(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        table_examples.examples(tables.read(write_text(tmp_path, content.encode(), "list.csv")))


@given(
    st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-16", "surrogatepass"))
)
@settings(max_examples=200)
def test_any_bytes_are_lines_or_one_error(tmp_path_factory, content):
    path = write_text(tmp_path_factory.getbasetemp(), content, "fuzzed")
    try:
        actual = list(text_files.lines(path))
    except UserError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert [line.number for line in actual] == list(range(1, len(actual) + 1))
        assert all((line.text is None) == bool(line.fault) for line in actual)


CELLS = st.text(st.sampled_from('ab,;"\t\n\r \\/.\0é\ud7ff') | st.characters(codec="utf-8"), max_size=8)


@given(st.lists(st.lists(CELLS, max_size=4), max_size=6), st.sampled_from([",", ";", "\t"]), st.booleans())
@settings(max_examples=200)
def test_any_table_is_examples_or_one_error(tmp_path_factory, rows, separator, heads):
    rows = [["path", "label"], *rows] if heads else rows
    content = "\n".join(separator.join(row) for row in rows).encode()
    path = write_text(tmp_path_factory.getbasetemp(), content, "fuzzed.csv")
    try:
        actual = table_examples.examples(tables.read(path))
    except UserError as error:
        assert str(path) in str(error)
    else:
        assert all(e.label == text_files.normal(e.label) and e.label and e.path.name for e in actual)


@pytest.mark.parametrize(
    "content, what",
    [
        *((b"PK\x03\x04..", "a zip file"), (b"%PDF-1.4", "a PDF"), (b"\xff\xd8\xff\xe0", "a picture")),
        *(
            (b"\x28\xb5\x2f\xfd..", "a compressed"),
            (gzip.compress(b"a".ljust(257, b"\0") + b"ustar", mtime=0), "a tar file"),
        ),
    ],
)
def test_a_file_that_is_no_text_says_what_it_is(tmp_path, content, what):
    path = tmp_path / "a.en"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"a.en: no text: {what}"):
        text_files.read(path)


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\npath;label\na.jpg;x\n",
        "# my pictures\n\nFile Name,CLASS\na.jpg,x\n",
        "\u200bpath,label\na.jpg,x\n",
    ],
)
def test_a_table_as_excel_and_people_write_it(tmp_path, text):
    path = tmp_path / "list.csv"
    path.write_text(text, encoding="utf-8")
    (examples,) = table_examples.examples(tables.read(path))
    assert (examples.path, examples.label) == (tmp_path / "a.jpg", "x")


def test_a_row_that_is_there_twice_is_read_once_and_other_columns_are_said(tmp_path):
    path, report = tmp_path / "list.csv", Report()
    path.write_text("path,label,wide\na,x,1\nb,x,0\na,x,0\na,y,0\n")
    examples = table_examples.examples(tables.read(path), report=report)
    assert [(one.path.name, one.label) for one in examples] == [("a", "x"), ("b", "x"), ("a", "y")]
    assert report.changed["a row that is there twice, read once"].example == f"{path}: line 4"
    assert report.skipped["a column that is not read"].example == f"{path}: wide"
