"""Tests that the preset `here` reads the data's sizes from the files, and that other presets name all wrong fields."""

import pathlib
import re

import numpy as np
import pytest

from common.config import automatic, benchmarks
from common.errors import UserError
from mnist import idx
from timetotrain.run import request
from timetotrain.run.options import BenchmarkFlags

DIGITS = {"num_train_examples": 810, "num_eval_examples": 90, "image_size": 20, "num_classes": 3}
WORDS = {"num_train_examples": 600, "num_eval_examples": 40, "vocabulary_size": 6}


def digits(folder: pathlib.Path, sides: tuple[int, int] = (20, 20)) -> None:
    for split, count, side in zip(("train", "test"), (810, 90), sides):
        images, labels = idx.FILES[split]
        idx.write(folder / images, np.zeros([count, side, side], np.uint8))
        idx.write(folder / f"{labels}.gz", np.arange(count) % 3)


def words(folder: pathlib.Path) -> None:
    (folder / "ptb.train.txt").write_text("a b c d e\n" * 100)
    (folder / "ptb.test.txt").write_text("a b c\n" * 10)


def configured(benchmark, folder, system="here", *fields):
    options = BenchmarkFlags(system=system, data_dir=str(folder))
    return request.configure(benchmark, options, fields)[0]


@pytest.mark.parametrize(("benchmark", "fill", "counts"), [("mnist", digits, DIGITS), ("ptb", words, WORDS)])
def test_counts_come_from_the_files(tmp_path, benchmark, fill, counts):
    fill(tmp_path)
    config = configured(benchmark, tmp_path)
    assert {path: getattr(config, path) for path in counts} == counts
    with pytest.raises(UserError) as raised:
        configured(benchmark, tmp_path, "here", ("num_train_examples", "500"), ("train_epochs", "1"))
    named = re.findall(r"--config\.(\w+)=(\d+)", str(raised.value))
    assert named == [("num_train_examples", str(counts["num_train_examples"]))]


@pytest.mark.parametrize(("benchmark", "fill", "counts"), [("mnist", digits, DIGITS), ("ptb", words, WORDS)])
def test_a_preset_counts_the_files_on_the_clock(tmp_path, benchmark, fill, counts):
    fill(tmp_path)
    config = configured(benchmark, tmp_path, "cpu-tiny")
    task = benchmarks.module(benchmark, "task").Task(config, str(tmp_path))
    task.check_input()
    with pytest.raises(UserError) as raised:
        task.check_data()
    ((name, value),) = re.findall(r"--config\.(\w+)=(\d+)", str(raised.value))
    assert counts[name] == int(value)


def test_files_that_are_missing_or_no_squares_are_left_to_one_line(tmp_path):
    rule = benchmarks.module("mnist", "presets").HERE
    config = benchmarks.module("mnist", "presets").PRESETS["cpu-128"]
    assert automatic.counted(rule, config, str(tmp_path)) == {} == automatic.counted(rule, config, "gs://a/b")
    digits(tmp_path, (20, 24))
    with pytest.raises(UserError, match="images of 20x20, 24x24; scale all to one square size"):
        configured("mnist", tmp_path)
