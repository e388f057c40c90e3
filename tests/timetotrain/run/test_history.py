"""Tests the lines while a run goes on, its history and its best checkpoint, whole across resumes."""

import io
import json
import os
import re
import signal
import types

import pytest

from common.config.quality import Measure
from common.config.run_length import Interval
from common.errors import UserError
from common.train import checkpoint_file, events
from tests.common.train import toy
from timetotrain.run import ending, history, progress, recorder, run
from timetotrain.run.options import RunOptions

MAIN = types.SimpleNamespace(main=True, count=1)
ACCURACY, PERPLEXITY = Measure("top-1 accuracy", unit="%"), Measure("perplexity", lower_is_better=True)


def evaluations(*values):
    return [{"kind": "evaluation", "step": 4 * i + 4, "value": v} for i, v in enumerate(values)]


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Starts runs of the toy task in this process; returns (exit status, recorder)."""
    monkeypatch.setattr(run.benchmarks, "module", lambda benchmark, part: toy)
    monkeypatch.setattr(run.Run, "_listen", lambda self: None)
    monkeypatch.setattr(toy.Task, "__init__", _init)

    def started(stop_at=None, **changes):
        options = RunOptions(result_dir=str(tmp_path / "out"), checkpoint_dir=str(tmp_path / "saved"))
        config = toy.config(quality_target=None, train_epochs=6, **changes)
        actual = recorder.Recorder(config, options, 1, [], {"config_overrides": {}})
        whole = run.Run("resnet", config, options, MAIN, actual)
        if stop_at is not None:
            record = actual.history.record

            def stopping(event):
                record(event)
                if getattr(event, "interval", None) and event.interval.end_step >= stop_at:
                    whole._on_signal(signal.SIGTERM, None)

            actual.history.record = stopping
        return whole.execute(), actual

    return started


_plain_init = toy.Task.__init__


def _init(self, config, data_dir=None):
    _plain_init(self, config)


def test_a_run_without_a_target_ends_well_and_says_that_it_is_no_result(start, capsys):
    status, actual = start()
    assert status == 0
    printed = capsys.readouterr().out
    assert "score    none: complete" in printed and "no MLPerf result" in printed
    assert f"best     {actual.options.checkpoint_dir}/best.npz" in printed
    assert printed.count("\nepoch ") == 6 and printed.count(", the best") == 1
    log = actual.path.read_text()
    assert '"no_mlperf_result"' in log and '"status": "aborted"' in log
    assert "no quality target was set; all 24 steps were trained" in log
    record = json.loads((actual.folder / "run.json").read_text())["runs"]["result_0.txt"]
    assert record["status"] == "complete" and record["score_minutes"] is None


def test_a_target_that_is_not_reached_still_aborts(start, monkeypatch):
    monkeypatch.setattr(toy, "config", lambda plain=toy.config, **c: plain(**{**c, "quality_target": 2.0}))
    assert start()[0] == ending.NOT_REACHED


def test_history_and_best_are_whole_across_a_resume(start, tmp_path):
    status, first = start(stop_at=12)
    assert status == 128 + signal.SIGTERM
    leftover = tmp_path / "saved" / f".{history.NAME}.x.partial"
    leftover.mkdir()
    status, second = start()
    assert status == 0 and not leftover.exists()
    records = history.read(second.folder / "history_1.jsonl")
    steps = [r["step"] for r in records if r["kind"] == "train"]
    assert steps == list(range(1, 25))
    seconds = [r["seconds"] for r in records if r["kind"] == "train"]
    assert seconds == sorted(seconds)
    evaluated = [r["step"] for r in records if r["kind"] == "evaluation"]
    assert evaluated == [4, 8, 12, 16, 20, 24]
    assert history.read(tmp_path / "saved" / history.NAME) == records
    top = history.best(toy.config().quality, records and second.history.evaluations, evaluated)
    saved = {checkpoint_file.step_of(p) for p in checkpoint_file.checkpoints(tmp_path / "saved")}
    assert top["step"] in saved and saved >= {20, 24}
    assert os.readlink(tmp_path / "saved" / checkpoint_file.BEST) == f"checkpoint_{top['step']:08d}.npz"


def test_the_best_of_equals_has_the_lowest_loss_and_is_then_the_latest():
    """The losses include one that is not finite, and a file of a version that wrote none."""
    tied = evaluations(0.5, 0.8, 0.8, 0.8)
    assert history.best(ACCURACY, tied, [4, 8, 12, 16])["step"] == 16
    for record, loss in zip(tied, (0.1, 0.5, 0.3, float("nan"))):
        record["loss"] = loss
    assert history.best(ACCURACY, tied, [4, 8, 12, 16])["step"] == 12
    assert history.best(ACCURACY, tied, [4, 8, 16])["step"] == 8


def test_the_best_has_the_highest_accuracy_or_the_lowest_perplexity():
    assert history.best(ACCURACY, evaluations(0.5, 0.8, 0.7), [4, 12])["step"] == 12
    assert history.best(PERPLEXITY, evaluations(200.0, 150.0, 170.0), [4, 8, 12])["step"] == 8
    assert history.best(ACCURACY, evaluations(float("nan")), [4]) is None
    assert history.best(ACCURACY, [], [4]) is None
    both = Measure("mAP")
    assert (
        history.best(both, evaluations({"BBOX": 0.2, "SEGM": 0.4}, {"BBOX": 0.4, "SEGM": 0.1}), [4, 8])[
            "step"
        ]
        == 4
    )


def test_a_checkpoint_stays_until_its_evaluation_is_known():
    assert history.protected(ACCURACY, evaluations(0.8, 0.5), [4, 8, 12, 16]) == {4, 12, 16}
    assert history.protected(ACCURACY, [], [4, 8]) == {4, 8}


def test_the_pointer_is_replaced_and_copied_where_there_are_no_links(tmp_path, monkeypatch):
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).write_text(name)
        assert history.point(tmp_path, name).read_text() == name
    monkeypatch.setattr(os, "symlink", lambda *_: (_ for _ in ()).throw(OSError("no links")))
    (tmp_path / checkpoint_file.BEST).unlink()
    assert history.point(tmp_path, "a.npz").read_text() == "a.npz"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz", "best.npz"]


def test_a_history_that_is_being_written_is_read_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / history.NAME
    assert history.read(path) == []
    line = json.dumps({"kind": "train", "step": 1, "seconds": 0.5, "loss": 2.0})
    path.write_text(line + "\n" + line[:20])
    assert [r["step"] for r in history.read(path)] == [1]
    path.write_text("{}\n")
    with pytest.raises(UserError, match=r"history.jsonl:1: not a line of a history"):
        history.read(path)


def test_a_folder_stands_for_its_best_checkpoint_where_a_run_has_noted_one(tmp_path):
    from common.export import trained

    for step in (4, 8):
        (tmp_path / f"checkpoint_{step:08d}.npz").write_text("")
    assert trained.find(tmp_path).name == "checkpoint_00000008.npz"
    history.point(tmp_path, "checkpoint_00000004.npz")
    assert trained.find(tmp_path).resolve().name == "checkpoint_00000004.npz"


BLOCK = Interval(0, 0, 4, 1, 1)


def test_lines_have_rate_loss_time_left_and_the_quality_by_its_name(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(toy.Config, "quality", Measure("top-1 accuracy", unit="%"))
    out = io.StringIO()
    reporter = progress.Reporter(toy.config(), out)
    for event in (
        events.RunStarted(100.0, 0),
        events.Progress(101.0, 0, BLOCK),
        events.Progress(101.5, 1, BLOCK, loss=2.0),
        events.Progress(102.0, 4, BLOCK, loss=1.23456789),
        events.Trained(BLOCK, [1.5, 1.25], [101.0, 102.0]),
        events.Evaluated(BLOCK, 103.0, 0.44526264, False, {}),
        events.RunStopped(104.0, "aborted", 20, "the target was not reached in 20 steps"),
    ):
        reporter.record(event)
    assert out.getvalue().splitlines() == [
        "step 4 of 20, epoch 1 of 5: loss 1.23, 96.0 examples/s, at most 2.7 s left",
        "epoch 1 of 5: top-1 accuracy 44.5 % (target 95.0 %), loss 1.25, after 3.0 s",
        "run aborted at step 20: the target was not reached in 20 steps",
    ]


def test_a_block_of_several_epochs_shows_the_epoch_that_trains(monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    out, config = io.StringIO(), toy.config()
    reporter, block = progress.Reporter(config, out), Interval(0, 0, 12, 1, 3)
    for step in (0, 1, 4, 5, 12):
        reporter.record(events.Progress(100.0 + step, step, block))
    assert re.findall(r"epoch (\d) of 5", out.getvalue()) == ["1", "2", "3"]


def test_a_long_run_says_how_long_it_takes_and_shows_its_baseline(monkeypatch):
    monkeypatch.setattr(toy.Config, "quality", Measure("top-1 accuracy", unit="%"))
    out = io.StringIO()
    reporter = progress.Reporter(toy.config(), out)
    reporter.least = {"value": 0.24, "what": "always the most frequent class"}
    for event in (
        events.RunStarted(100.0, 0),
        events.Progress(101.0, 1, BLOCK),
        events.Progress(105.0, 2, BLOCK),
        events.Progress(221.0, 4, BLOCK),
        events.Progress(261.0, 5, BLOCK),
        events.Evaluated(BLOCK, 300.0, 0.5, False, {}),
    ):
        reporter.record(event)
    length, *_, evaluation = out.getvalue().splitlines()[1:]
    assert length.startswith("the run takes at most about 13 min 20 s and its evaluations; Ctrl-C stops it")
    assert "(target 95.0 %, baseline 24.0 %)" in evaluation
    assert out.getvalue().count("the run takes") == 1


def test_numbers_and_times_are_short():
    assert [progress.number(x) for x in (0.0123456, 1.4, 32, 578.4, 11193.2)] == [
        *("0.0123", "1.40", "32.0", "578", "11,193")
    ]
    assert progress.number(float("nan")) == "nan"
    assert [progress.duration(x) for x in (-1, 14.83, 185, 7800)] == [
        "0.0 s",
        "14.8 s",
        "3 min 5 s",
        "2 h 10 min",
    ]


def test_qualities_are_shown_in_their_own_unit():
    assert Measure("BLEU", unit="points").text(0.2513) == "BLEU 25.1"
    assert Measure("BLEU", unit="points").text(25.13) == "BLEU 25.1"
    assert Measure("perplexity", lower_is_better=True).text(116.512) == "perplexity 116.5"
    names = Measure("mAP", names={"BBOX": "box mAP", "SEGM": "mask mAP"})
    assert names.text({"BBOX": 0.3771, "SEGM": 0.339}) == "box mAP 0.377, mask mAP 0.339"
