"""Tests the lines at a run's end (the quality against a baseline, what to try, how to go on), and how a log is read."""

import dataclasses
import json
import pathlib

import pytest

from common.config import benchmarks, data_description
from common.config.data_description import Description
from common.config.quality import Measure
from common.train import events
from tests.benchmarks import line
from timetotrain.run import advice, ending, log_ending

MNIST = benchmarks.module("mnist", "presets").PRESETS["cpu-tiny"]
SSD = benchmarks.module("ssd", "presets").PRESETS["cpu-tiny"]
LEAST = {"value": 0.24, "what": "always the most frequent class, shirt"}


def history(values, losses=(2.3, 2.5, 2.6)):
    """A history of a run whose loss grew, unless `losses` say otherwise."""
    train = [{"kind": "train", "step": 100 * i + 100, "loss": loss} for i, loss in enumerate(losses)]
    return [
        *train,
        *({"kind": "evaluation", "step": 100 * i + 100, "value": v} for i, v in enumerate(values)),
    ]


def lines(config, least, values, diverged=False):
    return ending.against(config, least, history(values), diverged)


def test_a_run_that_beats_its_baseline_shows_both():
    (line,) = lines(MNIST, LEAST, [0.3, 0.66, 0.64])
    assert line == "baseline top-1 accuracy 24.0 % (always the most frequent class, shirt)"
    assert lines(MNIST, {}, [0.3, 0.66, 0.64]) == []
    run = history([0.3, 0.66, 0.64])
    run[-2] |= {"confused": [["shirt", "coat", 9], ["coat", "shirt", 4]]}
    assert ending.against(MNIST, {}, run, False) == ["confused shirt as coat: 9, coat as shirt: 4"]
    run[-2] = {**run[-3], "value": 0.9, "by_class": {"cat": 0.5, "dog": 0.125}}
    assert ending.against(SSD, {}, run[:-1], False) == ["weakest  dog 0.125, cat 0.500"]


@pytest.mark.parametrize(
    ("least", "values", "why"),
    [
        (LEAST, [0.2, 0.245], "the best quality, top-1 accuracy 24.5 %, is no better than the baseline"),
        (LEAST, [0.2, 0.7, 0.3], "the quality fell from top-1 accuracy 70.0 % to top-1 accuracy 30.0 %"),
    ],
)
def test_a_quality_of_nothing_is_a_warning_with_what_to_try(least, values, why):
    _, line = lines(MNIST, least, values)
    rate = MNIST.optimizer.base_learning_rate / 5
    smaller = f"try a smaller rate, --config.optimizer.base_learning_rate={rate:.2g}"
    assert line.startswith(f"warning  {why}; the loss grew: {smaller}")


def test_a_high_baseline_leaves_less_to_gain():
    """A gain counts from a hundredth of what the baseline leaves: 0.015 % of 1.5 %."""
    least = {**LEAST, "value": 0.985}
    assert len(lines(MNIST, least, [0.9, 0.993])) == 1
    assert len(lines(MNIST, least, [0.9, 0.9852])) == 1
    assert "is no better than the baseline" in lines(MNIST, least, [0.9, 0.9851])[1]


def test_a_detector_that_falls_to_nothing_says_so_without_a_known_baseline():
    (line,) = lines(SSD, {}, [0.040, 0.027, 0.008])
    assert "the quality fell from" in line and "0.040" in line and "0.008" in line
    assert lines(SSD, {}, [0.040, 0.05, 0.07]) == []


def test_a_diverged_run_says_what_to_try_and_a_perplexity_needs_a_baseline():
    (line,) = lines(MNIST, {}, [], diverged=True)
    assert line.startswith("warning  the training diverged; the loss grew: try a smaller rate")

    class Perplexity(type(MNIST)):
        quality = Measure("perplexity", lower_is_better=True)

    config = Perplexity(**{f.name: getattr(MNIST, f.name) for f in dataclasses.fields(MNIST)})
    assert lines(config, {}, [100.0, 400.0]) == []


CURVES = json.loads(pathlib.Path(__file__).with_name("curves.json").read_text())


@pytest.mark.parametrize("name", CURVES)
def test_the_cause_of_a_run_made_wrong_is_named(name):
    """Each curve is of a run of cpu-tiny that was made wrong in the way of its name; `command` repeats it.

    The runs that are `held_out` set no threshold.
    """
    curve = CURVES[name]
    records = [{"kind": "train", "step": step, "loss": loss} for step, loss in curve["losses"]]
    records += [
        {"kind": "evaluation", "step": step, "value": value, "loss": loss}
        for step, value, loss in curve["evaluations"]
    ]
    expected = {"short": advice.SHORT, "large": advice.LARGE, "small": advice.SMALL, "data": advice.DATA}
    assert advice.cause(records, curve["diverged"]) == expected[name.split("-")[1].rstrip("0123456789")]
    assert advice.cause(records[:1]) == advice.SHORT


@pytest.mark.parametrize(
    ("values", "losses", "ends"),
    [
        # Within its noise.
        ([0.1, 0.5, 0.8, 0.8, 0.81, 0.79, 0.8, 0.8], [9, 5, 2, 2.1, 2, 2.2, 2.3, 2.4], True),
        # A late gain.
        ([0.1, 0.5, 0.8, 0.8, 0.81, 0.79, 0.8, 0.84], [9, 5, 2, 2.1, 2, 2.2, 2.3, 2.4], False),
        ([0.1, 0.5, 0.6, 0.61, 0.62, 0.63, 0.64, 0.65], [9, 5, 2, 2, 2, 2, 2, 2], False),  # A steady one.
        # The scores of a network rise further.
        ([0.1, 1, 1, 1, 1, 1, 1, 1], [9, 5, 4, 3, 2, 1.5, 1.2, 1], False),
        ([0.1, 1, 1, 1, 1, 1, 1, 1], [9, 1, 1, 1, 1, 1, 1, 1], True),
        ([0.1, 0.1, 0.1, 0.1, 0.1], [9, 9, 9, 9, 9], False),  # Too few.
    ],
)
def test_a_run_without_gain_is_saturated(values, losses, ends):
    records = [
        {"kind": "evaluation", "step": 100 * i, "value": value, "loss": loss}
        for i, (value, loss) in enumerate(zip(values, losses))
    ]
    config = dataclasses.replace(MNIST, quality_target=None, patience=5, train_steps=9999)
    assert bool(advice.saturated(config, records)) == ends
    for off in ({"patience": 0}, {"quality_target": 0.9}, {"train_steps": 100 * len(values) - 100}):
        assert not advice.saturated(dataclasses.replace(config, **off), records)


@pytest.mark.parametrize("name", [name for name in CURVES if "-data" in name])
def test_a_recorded_run_without_enough_data_ends_early_with_its_best(name):
    preset = benchmarks.module(name.split("-")[0], "presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(preset, quality_target=None, patience=5, train_steps=9999)
    records = [
        {"kind": "evaluation", "step": step, "value": value, "loss": loss}
        for step, value, loss in CURVES[name]["evaluations"]
    ]
    scores = [config.quality.score(r["value"]) for r in records]
    ends = [n for n in range(1, len(records) + 1) if advice.saturated(config, records[:n])]
    assert not ends or max(scores[: ends[0]]) >= max(scores) - 0.001
    assert bool(ends) == (name != "mnist-data1")  # Its quality rises to the end.


# Real runs from nothing: benchmark, classes, examples, epochs, whether the best quality was above the baseline. The
# sets with None were new to the rule, which said "will hardly" of them all, and four won: now it says "may not".
RUNS = [
    ("resnet", 20, 10000, 4, True),  # Tiny ImageNet: 42.3 %, regression 27.3 %.
    ("resnet", 5, 250, 16, False),  # Five of its classes: 46.0 %, regression 44.8 %.
    ("resnet", 10, 810, 30, False),  # Garments: 82.2 %, gradients and a support vector machine 83.3 %.
    ("ssd", 2, 271, 10, True),  # Nuclei: box mAP 0.375, median box below 0.01.
    ("ssd", 2, 180, 8, False),  # Raccoons: 0.000, median box 0.148.
    ("ssd", 81, 100, 49, False),  # COCO: 0.00002.
    ("maskrcnn", 2, 271, 4, True),  # Nuclei: 0.341.
    ("maskrcnn", 81, 100, 4, False),  # COCO: 0.0009.
    ("tsm_kinetics", 10, 528, 16, True),  # UCF101: 54.2 %, majority 10 %.
    ("tsm_kinetics", 2, 64, 172, True),  # 8 of 8 clips.
    ("transformer", 0, 3520, 3, True),  # Multi30k: BLEU 13.4.
    ("transformer", 0, 367, 12, False),  # Swedish: BLEU 0.8, nearest sentence 14.7.
    # These did not set what is enough (lab/studies/*/results.csv); all beat it.
    ("resnet", 20, 10000, 24, True),  # 61.3 %.
    ("resnet", 15, 7500, 12, True),  # 56.8 %.
    ("ssd", 2, 271, 40, True),  # Nuclei: AP50 0.849.
    ("maskrcnn", 2, 271, 16, True),  # Nuclei: AP50 0.850.
    ("tsm_kinetics", 10, 528, 60, True),  # 71.7 %.
    ("transformer", 0, 3706, 28, True),  # BLEU above 39.
    ("resnet", 2, 800, 48, True),  # Two of Tiny ImageNet's: 87.0 %, regression 79.0 %.
    ("tsm_kinetics", 5, 150, 113, True),  # Five of UCF101's: 80.0 %, majority 20.0 %.
    ("resnet", 3, 45, 358, None),  # Three of Tiny ImageNet's: 86.7 %, regression 60.0 %.
    ("resnet", 10, 400, 120, None),  # Ten of them: 48.8 %, regression 36.2 %.
    ("transformer", 0, 89, 121, None),  # 500 pairs of Multi30k: BLEU 9.6, nearest sentence 2.2.
    ("ssd", 2, 24, 84, None),  # Nuclei: box mAP 0.481, median box 0.000.
    ("tsm_kinetics", 3, 18, 325, None),  # Three of UCF101's: 41.7 %, majority 33.3 %, of 12 clips.
]


@pytest.mark.parametrize("benchmark, classes, examples, epochs, better", RUNS)
def test_a_run_says_before_it_whether_it_will_beat_the_baseline(benchmark, classes, examples, epochs, better):
    module = benchmarks.module(benchmark, "presets")
    changes = {"num_classes": classes} if classes else {}
    config = dataclasses.replace(
        module.PRESETS[module.HERE.preset], num_train_examples=examples, train_epochs=float(epochs), **changes
    )
    text = advice.outlook(config, LEAST, module.HERE)
    starts = (
        ("will beat",)
        if better
        else ("may not beat",)
        if better is None
        else ("will hardly beat", "may not beat")
    )
    assert text.startswith(starts), text
    if not better:  # What it names would do.
        assert (f"weights (timetotrain weights {benchmark}" in text) == bool(module.HERE.weights)
        examples = max(examples, module.HERE.enough[0] * max(classes, 1))
        enough = dataclasses.replace(config, num_train_examples=examples, train_epochs=300.0)
        assert advice.outlook(enough, LEAST, module.HERE).startswith("will beat")
    assert advice.outlook(config, {}, module.HERE) == "" == advice.outlook(config, LEAST, None)


def test_a_checkpoint_no_better_than_the_baseline_warns():
    records = [{"kind": "run", "step": 0, "baseline": LEAST}, *history([0.2, 0.66])]
    measure = MNIST.quality
    assert ending.poor(measure, records, 100).startswith(
        "warning  top-1 accuracy 20.0 % is no better than the baseline, top-1 accuracy 24.0 %"
    )
    assert ending.poor(measure, records, 200) == "" == ending.poor(measure, records[1:], 100)
    assert ending.poor(measure, records, 300) == ""  # Never evaluated.


def described(folder, **changes):
    description = Description(
        "mnist", (), {}, {}, {}, data_description.digest({}), "a test", {"train": 1, "eval": 1}
    )
    data_description.write(folder, dataclasses.replace(description, **changes))
    return str(folder)


def test_the_baseline_is_in_the_data_s_description(tmp_path):
    assert ending.baseline(MNIST, described(tmp_path, baseline=LEAST)) == LEAST
    assert ending.baseline(MNIST, described(tmp_path)) == {} == ending.baseline(MNIST, None)
    for value in ("much", {}, {"BBOX": 0.1}, None, True, float("nan")):
        folder = described(tmp_path, baseline={"value": value, "what": "x"})
        assert ending.baseline(MNIST, folder) == {}, value
    content = json.loads((tmp_path / data_description.NAME).read_text())
    del content["baseline"]  # As an earlier version wrote it.
    (tmp_path / data_description.NAME).write_text(json.dumps(content))
    assert ending.baseline(MNIST, str(tmp_path)) == {}


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    stopped = events.RunStopped(0.0, "aborted", 7, "SIGTERM at step 7")
    missed = events.RunStopped(0.0, "aborted", 7, f"{events.MISSED} in 7 steps")
    assert (ending.exit_status(stopped), ending.exit_status(missed)) == (143, 1)
    assert ending.continued(missed, str(tmp_path)) == []
    assert ending.continued(stopped, None)[0].startswith("go on    not possible: no checkpoint was saved")
    assert ending.continued(stopped, str(tmp_path)) == [
        "go on    not possible: it stopped before the first checkpoint"
    ]
    (tmp_path / "checkpoint_00000005.npz").touch()
    assert ending.continued(stopped, str(tmp_path)) == [
        f"go on    with the same command and --checkpoint_dir={tmp_path}: from step 5, 2 steps before it stopped"
    ]
    (tmp_path / "checkpoint_00000007.npz").touch()
    assert ending.continued(stopped, str(tmp_path))[0].endswith("from step 7")


def test_a_run_without_a_target_has_no_verdict_of_the_checker(tmp_path):
    aimless = dataclasses.replace(MNIST, **dict.fromkeys(MNIST.target_fields))
    assert ending.verdict(aimless, tmp_path / "none") == "no MLPerf result: no quality target was set"


ROOT = pathlib.Path(__file__).resolve().parents[3]
MISSED = {"status": "aborted", "reason": "the target was not reached in 10 steps"}


def log(folder: pathlib.Path, *values: object, **stop: str) -> pathlib.Path:
    """Writes a log of a minute with these evaluations; without `stop` it has no run_stop."""
    lines = [line("run_start"), *(line("eval_accuracy", v, 1) for v in values)]
    lines += [line("run_stop", None, 60000, **stop)] if stop else []
    path = folder / "result_0.txt"
    path.write_text("".join(lines))
    return path


@pytest.mark.parametrize(
    ("values", "status", "reason", "whole", "diverged", "quality"),
    [
        ((0.5, 0.9), "success", "", True, False, 0.9),
        ((0.5, 0.7), "aborted", "the target was not reached in 10 steps", True, False, 0.7),
        ((0.5,), "aborted", "loss is nan at step 5; lower the learning rate", True, True, None),
        ((0.5, float("nan")), "aborted", "the target was not reached in 10 steps", True, True, None),
        ((), "aborted", "the target was not reached in 10 steps", True, False, None),
        ((0.5,), "aborted", "loss is nan at step 9", True, True, None),
        ((0.5, 0.7), "aborted", "nothing was gained in 5 evaluations", True, False, 0.7),
        ((0.5,), "aborted", "SIGTERM", False, False, 0.5),
        ((0.5,), "aborted", "IndexError: out of range", False, False, 0.5),
    ],
)
def test_endings(tmp_path, values, status, reason, whole, diverged, quality) -> None:
    path = log(tmp_path, *values, status=status, reason=reason)
    end = log_ending.read(path)
    assert (end.whole, end.diverged, end.quality, end.minutes) == (whole, diverged, quality, 1.0)
    assert log_ending.is_whole(path) is whole and end.reached is (status == "success")


def test_a_log_that_stops_short_has_no_ending(tmp_path) -> None:
    assert log_ending.read(log(tmp_path, 0.5)) is None
    assert log_ending.read(tmp_path / "nothing.txt") is None and not log_ending.is_whole(
        tmp_path / "nothing.txt"
    )


def test_a_log_of_mask_rcnn_has_both_its_qualities() -> None:
    path = ROOT / "lab/studies" / "nuclei" / "maskrcnn_result_0.txt"
    end = log_ending.read(path)
    assert log_ending.is_whole(path) and not end.reached and not end.diverged
    assert end.minutes == pytest.approx(11.25, abs=0.01) and len(end.evaluations) == 4
    assert end.evaluations[0] == {"BBOX": 0.3426686429996537, "SEGM": 0.38452893825360196}
    assert end.quality == end.evaluations[-1]


@pytest.mark.parametrize("bad", [float("nan"), None, "x", [0.5]])
def test_a_part_that_is_no_number_is_a_divergence_and_no_traceback(tmp_path, bad) -> None:
    for value in (bad, {"BBOX": 0.5, "SEGM": bad}):
        path = log(tmp_path, value, **MISSED)
        end = log_ending.read(path)
        assert end.diverged and end.quality is None and log_ending.is_whole(path) and end.minutes == 1.0
