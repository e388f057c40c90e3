"""Tests what conversions share: a killed worker is one line; the report counts, with one example of each kind."""

import json
import os

import pytest

from common.data import conversion
from common.data.report import Report
from common.errors import UserError
from common.text import conversion as text


def test_a_killed_worker_of_shards_is_one_line() -> None:
    """The tasks are of the standard library, so that the workers import nothing else."""
    assert sorted(conversion.write_shards(abs, [(0,), (-1,)], 2)) == [0, 1]
    with pytest.raises(UserError, match="a worker process died; is there enough memory"):
        conversion.write_shards(os._exit, [(9,), (9,)], 2)


def test_a_killed_worker_of_sentences_is_one_line() -> None:
    with text.pool(2) as spread:
        assert list(spread(abs, [0, -1, 3])) == [0, 1, 3]
        with pytest.raises(UserError, match="a worker process died; is there enough memory"):
            list(spread(os._exit, [9, 9]))


def filled():
    report = Report()
    report.leave_out("no whole picture (cut)", "a.jpg")
    report.leave_out("no whole picture (cut)", "b.jpg")
    report.skip("no picture (.txt)", "README.txt", 3)
    report.change("turned upright", "c.jpg")
    return report


def test_findings_are_counted_with_their_first_example(tmp_path):
    report = filled()
    report.take("pictures", 7)
    content = json.loads(report.write(tmp_path).read_text())
    assert content["taken"] == {"pictures": 7}
    assert content["left_out"] == {"no whole picture (cut)": {"count": 2, "example": "a.jpg"}}
    assert content["skipped"]["no picture (.txt)"]["count"] == 3
    assert content["changed"] == {"turned upright": {"count": 1, "example": "c.jpg"}}
    assert report.lines == ["a.jpg: no whole picture (cut)", "b.jpg: no whole picture (cut)"]


def test_strict_refuses_what_is_suspicious_and_nothing_else():
    report = filled()
    report.check(True)
    report.suspect("the same picture to train and to evaluate on", "a.jpg and b.jpg")
    report.check(False)
    with pytest.raises(UserError, match="to evaluate on: 1, such as a.jpg and b.jpg"):
        report.check(True)


@pytest.mark.parametrize(
    "counts, reasons",
    [
        ([("a", 50, 5), ("b", 45, 5)], set()),
        ([("a", 50, 5), ("b", 4, 5)], {"class with fewer than 5 pictures to train on"}),
        ([("a", 50, 5), ("b", 40, 0)], {"class without pictures to evaluate on"}),
        ([("a", 501, 5), ("b", 10, 5)], {"a class has over 50 times the pictures of another"}),
    ],
)
def test_classes_with_few_examples_and_imbalance_are_suspicious(counts, reasons):
    report = Report()
    report.balance(counts, "pictures")
    assert set(report.suspicious) == reasons


def test_a_finished_conversion_counts_its_parts():
    report = filled()
    report.complete((), "pairs", {"train": 9, "eval": 1})
    assert report.totals == {"pairs to train on": 9, "pairs to evaluate on": 1}
