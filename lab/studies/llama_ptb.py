"""Trains ptb's LSTM and llama31_8b's network on the Penn Treebank for equal minutes, and compares their perplexities.

Both number the words alike, so their perplexities are of the same words. The LSTM carries its state through the text; a
window of the Transformer starts without what came before it. A schedule fits the minutes, as two short runs say
how far a contender gets in one. Rates are the better of two on the validation text in two minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path

from common.errors import UserError
from lab.bench.harness.scripts import head, write
from lab.studies.data import ROOT
from lab.studies.legw_values import PTB
from lab.studies.runner import settings
from llama31_8b import indexed, order
from ptb import text
from ptb.presets import PRESETS
from timetotrain.launch.children import Children
from timetotrain.search import trial

NAME = "llama-ptb"
RESULTS = ROOT / "lab" / "studies" / NAME / "results.json"
WINDOW, BATCH = 64, 20  # Words that the Transformer reads at once, and windows in its batch.
SPLITS = ("test", "valid")


@dataclasses.dataclass(frozen=True)
class Contender:
    """A network to train.

    Attributes:
      benchmark, preset: what trains.
      flags: of every run of it.
      probe: length of the run that measures its speed: epochs of the LSTM, steps of the Transformer.
    """

    benchmark: str
    preset: str
    flags: tuple[str, ...]
    probe: float

    def lasts(self, length: float) -> tuple[str, ...]:
        """Returns the flags of a run of `length`, which evaluates at its end and ends with its lowest rate."""
        if self.benchmark == "llama31_8b":
            steps = round(length)
            return settings(train_steps=steps, steps_per_block=steps, schedule__warmup_steps=1 + steps // 20)
        whole = PRESETS[self.preset]
        ends = [at * length / whole.train_epochs for at in whole.schedule.boundaries]
        return settings(
            train_epochs=length,
            epochs_per_block=length,
            schedule__boundaries=",".join(f"{end:.4f}" for end in ends),
        )

    def epochs(self, length: float) -> float:
        """Returns how often a run of `length` reads the training text."""
        if self.benchmark == "ptb":
            return length
        return length * BATCH * WINDOW / PRESETS["cpu-20"].num_train_examples


# 4.7 and 4.9 million weights.
_FAST = settings(optimizer__base_learning_rate=0.1, schedule__warmup_epochs=0.02)
LSTM = Contender("ptb", "cpu-20", (*PTB.flags, *_FAST), probe=0.1)
TRANSFORMER = Contender(
    "llama31_8b",
    "cpu-tiny",
    settings(
        precision="bf16",
        width=200,
        hidden=512,
        sequence_length=WINDOW,
        global_batch_size=BATCH,
        eval_batch_size=20,
        optimizer__base_learning_rate=1e-3,
        schedule__end_learning_rate=1e-4,
    ),
    probe=300,
)


def number_words(split: str, folder: Path) -> tuple[str, ...]:
    """Writes the words as the Transformer's tokens, numbered as for the LSTM; returns the flags that describe them.

    Raises UserError if a text is missing or unreadable.
    """
    size, source = PRESETS[LSTM.preset].vocabulary_size, PTB.data()
    vocabulary, windows = {}, {}
    for name, part in (("train", "train"), ("eval", split)):
        path = source / f"ptb.{part}.txt"
        words = text.read(path)
        vocabulary = vocabulary or text.vocabulary(words)
        count = indexed.write(folder / name, [text.numbers(words, vocabulary, path)], indexed.dtype_for(size))
        windows[name] = order.window_count(count, WINDOW)
    return settings(vocab_size=size, num_train_examples=windows["train"], num_eval_examples=windows["eval"])


def train(contender: Contender, length: float, flags: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Trains for `length`; returns the perplexity at the end, and the minutes from run_start to run_stop.

    Raises UserError if the run failed.
    """
    folder.mkdir()
    options = (f"--system={contender.preset}", *contender.flags, *contender.lasts(length), *flags)
    never = settings(quality_target=0.0, division="open")
    status, _ = trial.attempt(
        contender.benchmark, [*options, *never], folder, Children("begin the study again"), {}
    )
    end = trial.ending_of(folder)
    if end is None or end.quality is None:
        raise UserError(f"{contender.benchmark} failed: {trial.last_line(folder)}", status or 1)
    perplexity = math.exp(end.quality) if contender.benchmark == "llama31_8b" else end.quality
    return perplexity, end.minutes


def fitting(contender: Contender, minutes: float, flags: tuple[str, ...], folder: Path) -> float:
    """Returns the length of a run that takes `minutes`, its evaluation included, by two short runs.

    Raises UserError if the short runs take too long, or their times say nothing.
    """
    short, long = contender.probe, 2 * contender.probe
    first, second = (
        train(contender, length, flags, folder / f"{contender.benchmark}-{length:g}")[1]
        for length in (short, long)
    )
    length = short + (minutes - first) * (long - short) / (second - first) if second > first else 0
    if length <= 0:
        raise UserError(
            f"--minutes={minutes:g}: {contender.benchmark} took {first:.2f} minutes for {short:g} and {second:.2f} for "
            f"{long:g}; give more minutes, on a machine with nothing else to do"
        )
    return length


def compare(split: str, minutes: float) -> list[dict]:
    """Trains both for `minutes`, one after the other; returns a row of results for each."""
    held_out = PTB.held_out if split == "valid" else ()
    rows = []
    with tempfile.TemporaryDirectory(prefix="timetotrain-study-") as name:
        folder = Path(name)
        tokens = number_words(split, folder)
        for contender, flags in (
            (LSTM, (f"--data_dir={PTB.data()}", *held_out)),
            (TRANSFORMER, (f"--data_dir={folder}", *tokens)),
        ):
            length = fitting(contender, minutes, flags, folder)
            perplexity, length_minutes = train(contender, length, flags, folder / contender.benchmark)
            epochs = contender.epochs(length)
            rows.append(
                {
                    "network": contender.benchmark,
                    "perplexity": perplexity,
                    "minutes": length_minutes,
                    "epochs": epochs,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the study's flags."""
    parser.add_argument("--minutes", type=float, default=12, help="of each network; default: 12")
    parser.add_argument(
        "--split", choices=SPLITS, default="test", help="text to evaluate on; valid writes no table"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the study; returns the exit status."""
    if args.minutes <= 0:
        raise UserError(f"--minutes={args.minutes:g}: must be above 0")
    rows = compare(args.split, args.minutes)
    if args.split == "test":
        about = {**head(), "usable_cores": len(os.sched_getaffinity(0)), "asked_minutes": args.minutes}
        write({**about, "rows": rows}, RESULTS)
    return 0
