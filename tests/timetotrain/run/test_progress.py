"""Tests the lines that a person sees while a run goes on."""

import io
import re

from common.config.clock import Block
from common.config.quality import Measure
from common.train import events
from tests.common.train import toy
from timetotrain.run import progress

BLOCK = Block(0, 0, 4, 1, 1)


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
    reporter, block = progress.Reporter(config, out), Block(0, 0, 12, 1, 3)
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
    assert Measure("BLEU", unit="points").shown(0.2513) == "BLEU 25.1"
    assert Measure("BLEU", unit="points").shown(25.13) == "BLEU 25.1"
    assert Measure("perplexity", lower_is_better=True).shown(116.512) == "perplexity 116.5"
    names = Measure("mAP", names={"BBOX": "box mAP", "SEGM": "mask mAP"})
    assert names.shown({"BBOX": 0.3771, "SEGM": 0.339}) == "box mAP 0.377, mask mAP 0.339"
