"""Tests that a run of any length is held in bounded memory, and that short ones are held whole."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compliance.report import charts
from compliance.submission import runs
from compliance.submission.downsampling import Span, Spans, Thinned
from compliance.submission.runs import read_run
from tests.compliance import result_logs


@given(st.integers(0, 300), st.integers(2, 40))
@example(241, 15)
def test_thinned_items_are_even_and_end_with_the_last(count, most):
    thinned = Thinned(most)
    for item in range(count):
        thinned.add(item)
    items = thinned.items
    assert thinned.count == count and len(items) <= most + 1
    if count <= most:
        assert items == list(range(count))
    else:
        assert (items[0], items[-1]) == (0, count - 1)
        steps = {b - a for a, b in zip(items[:-1], items[1:-1])}
        assert len(steps) <= 1 and all(items[-1] - items[-2] <= step for step in steps)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=60), st.integers(1, 8))
def test_merged_spans_cover_the_spans(pairs, most):
    spans, whole = Spans(most), []
    for epoch, (start, length) in enumerate(pairs):
        spans.start(epoch, start)
        spans.stop(epoch, start + length)
        whole.append((start, start + length))
    merged = spans.spans()
    assert spans.count == len(pairs) and len(merged) <= most
    assert all(any(m.start <= a and b <= m.stop for m in merged) for a, b in whole)
    if len(pairs) <= most:
        assert sorted((span.start, span.stop) for span in merged) == sorted(whole)


def test_the_shortest_gaps_close_first():
    spans = Spans(2)
    for epoch, (start, stop) in enumerate([(0, 10), (11, 20), (50, 60), (90, 100), (101, 110)]):
        spans.start(epoch, start)
        spans.stop(epoch, stop)
    spans.start(9, 200)
    assert [(s.start, s.stop) for s in spans.spans()] == [(0, 60), (90, 110), (200, None)]
    assert isinstance(spans.spans()[0], Span)


def long_log(path, evaluations, best):
    """A log with very many evaluations, of which only number `best` meets the target."""
    lines = result_logs.log("resnet").splitlines()
    at = next(index for index, line in enumerate(lines) if '"run_start"' in line)
    start = json.loads(lines[at].removeprefix(":::MLLOG "))["time_ms"]

    def record(key, value, time_ms, **metadata):
        fields = {"namespace": "", "time_ms": time_ms, "event_type": "", "key": key, "value": value}
        return ":::MLLOG " + json.dumps({**fields, "metadata": metadata})

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
    monkeypatch.setattr(runs, "Thinned", lambda: Thinned(50))
    monkeypatch.setattr(runs, "Spans", lambda: Spans(50))
    part = read_run(path)
    assert len(part.evaluations) <= 51 < len(whole.evaluations) == part.evaluated == 2000
    assert (part.best, part.complies, part.quality, part.epochs) == (
        whole.best, whole.complies, whole.quality, whole.epochs,
    )  # fmt: skip
    assert part.complies == (best is not None) and len(part.evals) <= 50
    curve = charts.curve(part, "", charts.axis([0, 1]), charts.axis([0, 1]), 60_000)
    assert curve.count == 2000 and len(curve.points) <= 51
