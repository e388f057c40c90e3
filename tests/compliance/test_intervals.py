"""Tests that a run of any length is held in bounded memory."""

import pytest

from compliance.report import charts
from compliance.submission import intervals, runs
from compliance.submission.intervals import Spans
from compliance.submission.runs import read_run
from tests.compliance import result_logs
from tests.compliance.made_logs import record, records_of


def test_what_follows_the_most_intervals_is_one_with_the_last(monkeypatch):
    monkeypatch.setattr(intervals, "MOST", 2)
    spans = Spans()
    for epoch, (start, stop) in enumerate([(0, 10), (11, 20), (50, 60), (90, 100)]):
        spans.start(epoch, start)
        spans.stop(epoch, stop)
    spans.start(9, 200)
    assert [(s.start, s.stop) for s in spans.spans()] == [(0, 10), (11, 100), (200, None)]


def long_log(path, evaluations, best):
    """A log with very many evaluations, of which only number `best` meets the target."""
    lines = result_logs.log("resnet").splitlines()
    at = next(index for index, line in enumerate(lines) if '"run_start"' in line)
    start = records_of(lines[at])[0]["time_ms"]

    lines = lines[: at + 1]
    for epoch in range(evaluations):
        lines.append(record("eval_start", None, start + 10 * epoch, epoch_num=epoch))
        value = 0.77 if epoch == best else 0.1 + 0.5 * epoch / evaluations
        lines.append(record("eval_accuracy", value, start + 10 * epoch + 3, epoch_num=epoch))
        lines.append(record("eval_stop", None, start + 10 * epoch + 4, epoch_num=epoch))
    lines.append(record("run_stop", None, start + 10 * evaluations, status="success"))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("best", [None, 1, 777])
def test_a_long_run_is_judged_by_all_its_evaluations(tmp_path, monkeypatch, best):
    path = tmp_path / "result_0.txt"
    long_log(path, 2000, best)
    whole = read_run(path)
    for module in (intervals, runs):
        monkeypatch.setattr(module, "MOST", 50)
    part = read_run(path)
    assert len(part.evaluations) <= 51 < len(whole.evaluations) == part.evaluated == 2000
    assert (part.best, part.complies, part.quality, part.epochs) == (
        whole.best, whole.complies, whole.quality, whole.epochs,
    )  # fmt: skip
    assert part.complies == (best is not None) and len(part.evals) <= 50
    curve = charts.curve(part, "", charts.axis([0, 1]), charts.axis([0, 1]), 60_000)
    assert curve.count == 2000 and len(curve.points) <= 51
