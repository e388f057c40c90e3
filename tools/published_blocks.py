"""Computes systems/predict/data/blocks.csv, the blocks of Google's published runs, from their logs.

    python -m tools.published_blocks V0.6 V0.7

V0.6 and V0.7 are folders with `Google/results/<system>/<benchmark>/result_*.txt` from mlcommons/training_results_v0.6
and _v0.7. Each number is in seconds, the median over a folder's runs:

- period: time from the start of a block to the start of the next; excludes the first block.
- start: how much longer the first block takes than later ones.
- evaluation: time of an evaluation outside the blocks. It ends with eval_accuracy and begins with eval_start.
  Exceptions: in Mask R-CNN's v0.7 logs it begins with block_stop, since predictions are fetched before eval_start; in
  SSD's logs, which write eval_start at a block's start, it begins with the last block's end. Empty for ResNet-50 and
  JAX's Transformer, which evaluate inside the blocks.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from common.errors import UserError
from common.files import write_csv
from tools.published import command

FIELDS = ("round", "system", "benchmark", "period", "start", "evaluation")
TARGET = Path(__file__).resolve().parents[1] / "systems" / "predict" / "data" / "blocks.csv"
ROUNDS = ("v0.6", "v0.7")
_NAMES = {"mask": "maskrcnn"}
_BENCHMARKS = ("gnmt", "mask", "maskrcnn", "resnet", "ssd", "transformer")
# v0.6: ":::MLL 1558642361.1 key: {...}"; v0.7: ":::MLLOG {...}".
_V06 = re.compile(r":::MLL (\d+\.\d+) (\w+): \{")
_V07 = re.compile(r":::MLLOG (\{.*)$")
# Length of a first block relative to later ones, if it differs: SSD's 3,750 steps of 625 (docs/sources.md, mlperf
# 1.2), the three epochs of TF2.0's ResNet-50 in blocks of four.
_FIRST = {("v0.6", "ssd"): 6.0, ("v0.7", "tpu-v3-32-TF2.0"): 0.75}

Events = dict[str, list[float]]


def rows(folders: dict[str, Path]) -> Iterator[tuple[str, ...]]:
    """The rows of all TPU systems in the rounds' folders, in order."""
    for name, folder in folders.items():
        place = folder / "Google" / "results"
        if not place.is_dir():
            raise UserError(f"{place}: no such folder; it has the results of training_results_{name}")
        for benchmark in sorted(place.glob("tpu-*/*")):
            logs = sorted(benchmark.glob("result_*.txt"))
            if benchmark.name in _BENCHMARKS and logs:
                title = _NAMES.get(benchmark.name, benchmark.name)
                yield (name, benchmark.parent.name, title, *_row(name, title, benchmark.parent.name, logs))


def _row(when: str, benchmark: str, system: str, logs: list[Path]) -> tuple[str, str, str]:
    found = [_run(when, benchmark, system, _events(path)) for path in logs]
    columns = [[value for value in column if value is not None] for column in zip(*found, strict=True)]
    return tuple(f"{median(column):.3f}" if column else "" for column in columns)


def _run(when: str, benchmark: str, system: str, events: Events) -> tuple[float, float, float | None]:
    """One run's period, start and evaluation."""
    blocks = events["block_start"]
    lengths = [after - before for before, after in zip(blocks, blocks[1:])]
    period = median(lengths[1:] or lengths)
    length = _FIRST.get((when, system)) or _FIRST.get((when, benchmark), 1.0)
    evaluation = _evaluation(when, benchmark, events)
    first, expected = blocks[1] - events["run_start"][0], length * period
    if (when, benchmark) == ("v0.7", "transformer") and evaluation is not None:
        first, expected = (
            blocks[0] - events["run_start"][0],
            period - evaluation,
        )  # block_start also ends a block.
    elif when == "v0.6" and benchmark in ("gnmt", "transformer"):
        expected -= _decoding(events)  # A period includes decoding of the previous block.
    return period, max(0.0, first - expected), evaluation


def _evaluation(when: str, benchmark: str, events: Events) -> float | None:
    known = events["eval_accuracy"]
    if benchmark == "resnet" or not events["eval_start"]:
        return None
    if benchmark == "ssd":
        stop = events["run_stop"][0]
        return stop - max(t for t in events["block_start"] if t < stop)
    begins = events["block_stop" if (when, benchmark) == ("v0.7", "maskrcnn") else "eval_start"]
    return median(after - before for before, after in zip(begins, known))


def _decoding(events: Events) -> float:
    """Seconds of a beam search on the device: from a block's start to the next eval_start."""
    return median(after - before for before, after in zip(events["block_start"][1:], events["eval_start"]))


def _events(path: Path) -> Events:
    found: Events = {name: [] for name in ("run_start", "run_stop", "block_start", "block_stop")}
    found |= {"eval_start": [], "eval_accuracy": []}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := _V06.search(line):
            key, seconds = match[2], float(match[1])
        elif match := _V07.search(line):
            content = json.loads(match[1])
            key, seconds = content["key"], content["time_ms"] / 1000
        else:
            continue
        if key in found:
            found[key].append(seconds)
    return found


def main(arguments: list[str]) -> int:
    """Writes the table."""

    def write(*places: str) -> None:
        write_csv(TARGET, FIELDS, rows(dict(zip(ROUNDS, map(Path, places)))), line_end="\n")

    return command(__doc__, arguments, len(ROUNDS), write)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
