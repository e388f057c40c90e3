"""Tests the study of the Transformer beside the LSTM: equal words, schedules that fit, one row for each network."""

import argparse
import dataclasses
import json

import numpy as np
import pytest

from common.config import overrides
from common.config.run_length import RunLength
from common.errors import UserError
from lab.studies import llama_ptb
from lab.studies.llama_ptb import BATCH, LSTM, TRANSFORMER, WINDOW
from llama31_8b import indexed
from llama31_8b.presets import PRESETS as LLAMA
from ptb import input as ptb_input
from ptb import tiny
from ptb.presets import PRESETS


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Generated texts in place of the Penn Treebank."""
    tiny.generate(tmp_path / "ptb")
    monkeypatch.setattr(llama_ptb, "PTB", dataclasses.replace(llama_ptb.PTB, data=lambda: tmp_path / "ptb"))
    monkeypatch.setattr(llama_ptb, "PRESETS", {LSTM.preset: PRESETS["cpu-tiny"]})
    return tmp_path


@pytest.mark.parametrize("split", llama_ptb.SPLITS)
def test_both_networks_read_the_same_numbers(words, split) -> None:
    flags = llama_ptb.number_words(split, words)
    data = dataclasses.replace(PRESETS["cpu-tiny"].data, eval_split=split)
    config = dataclasses.replace(PRESETS["cpu-tiny"], data=data)
    for name, expected in zip(("train", "eval"), ptb_input.load(config, words / "ptb")):
        index = indexed.read_index(words / name)
        np.testing.assert_array_equal(np.fromfile(words / f"{name}.bin", index.dtype), expected)
    windows = (40000 - 1) // WINDOW, (8000 - 1) // WINDOW
    assert flags == (
        "--config.vocab_size=31",
        f"--config.num_train_examples={windows[0]}",
        f"--config.num_eval_examples={windows[1]}",
    )


def test_a_schedule_ends_with_the_run() -> None:
    """The LSTM's rate falls at the same parts of the run as in 13 epochs; the Transformer's ends at a tenth."""
    short = overrides.override_all(PRESETS["cpu-20"], [*LSTM.flags, *LSTM.lasts(2.6)])
    assert short.schedule.boundaries == pytest.approx([1.4, 1.6, 1.8, 2.0, 2.2, 2.4])
    run_length = RunLength.of(short)
    assert run_length.train_steps == run_length.steps_per_block
    config = overrides.override_all(LLAMA["cpu-tiny"], [*TRANSFORMER.flags, *TRANSFORMER.lasts(400.4)])
    assert (config.train_steps, config.steps_per_block, config.schedule.warmup_steps) == (400, 400, 21)
    assert TRANSFORMER.epochs(400) == 400 * BATCH * WINDOW / 929589 and LSTM.epochs(2.6) == 2.6


def test_the_minutes_of_a_short_run_give_the_length(words, monkeypatch) -> None:
    trained = []

    def train(contender, length, flags, folder):
        trained.append((contender.benchmark, length))
        return 100.0 + len(trained), 0.25 + 0.5 * length / contender.probe  # An evaluation takes a quarter.

    monkeypatch.setattr(llama_ptb, "train", train)
    monkeypatch.setattr(llama_ptb, "RESULTS", words / "results.json")
    assert llama_ptb.run(argparse.Namespace(minutes=8, split="test")) == 0
    lengths = [(one.benchmark, k * one.probe) for one in (LSTM, TRANSFORMER) for k in (1, 2, 15.5)]
    assert trained == [(name, pytest.approx(length)) for name, length in lengths]
    rows = json.loads((words / "results.json").read_text())["rows"]
    assert [(row["network"], row["perplexity"], row["minutes"]) for row in rows] == [
        ("ptb", 103.0, pytest.approx(8)),
        ("llama31_8b", 106.0, pytest.approx(8)),
    ]
    with pytest.raises(UserError, match="--minutes=0: must be above 0"):
        llama_ptb.run(argparse.Namespace(minutes=0, split="test"))
