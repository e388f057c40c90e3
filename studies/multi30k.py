"""English to German on Multi30k: a translation benchmark trained on captions of photographs, BLEU on test_2016_flickr.

The preset's settings and the checkpoint are chosen on the validation captions; the test captions are translated once,
with that checkpoint. BLEU is sacreBLEU's with its default tokenizer, case and all, on detokenized text. A study that
was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from common.errors import UserError
from studies.data import ROOT, unpack

PRESET = "cpu-multi30k"
TEST, TEST_LINES = "test_2016_flickr", 1000
COLUMNS = ("epoch", "minutes", "validation_bleu", "validation_sacrebleu")
# How each benchmark cuts the text; its preset says how many tokens and sequences that gives.
CONVERT = {
    "transformer": ("--vocabulary-size=8000", "--max-length=60", "--packed-length=128", "--shards=4"),
    "gnmt": ("--merges=8000", "--max-length=48", "--shards=4"),
}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run: after which epoch and step, minutes since the run began, both BLEUs from 0 to 100."""

    epoch: int
    step: int
    minutes: float
    bleu: float
    sacrebleu: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m studies multi30k`."""
    parser.add_argument("benchmark", choices=sorted(CONVERT), help="which network")
    parser.add_argument("overrides", nargs="*", help="further flags of python -m BENCHMARK, after --")


def run(args: argparse.Namespace) -> int:
    """Converts the captions, trains, translates the test set with the best checkpoint, writes table and curve."""
    data = _convert(args.benchmark)
    results = ROOT / "results" / f"study-multi30k-{args.benchmark}"
    checkpoints = results / "checkpoints"
    status = _train(args.benchmark, data, results, checkpoints, args.overrides)
    if status > 1:
        return status
    found = evaluations(sorted((results / PRESET / args.benchmark).glob("result_*.txt")))
    if not found:
        raise UserError(f"{results}: no evaluation was logged; remove the folder and run again")
    best = max(found, key=lambda e: e.sacrebleu)
    quality = _test(args.benchmark, data, checkpoint_of(best, checkpoints), args.overrides)
    _publish(args.benchmark, results, found, best, quality)
    return 0


def _convert(benchmark: str) -> pathlib.Path:
    """The folder of training records, validation text and test text."""
    source = unpack("text") / "multi30k"
    folder = source.parent / f"multi30k-{benchmark}"
    if not (folder / "test.reference").is_file():
        parts = [("train", "train"), ("eval", "val")]
        files = [
            f"--{name}-{side}={source / part}.{language}.gz"
            for name, part in parts
            for side, language in (("source", "en"), ("target", "de"))
        ]
        command = [sys.executable, "-m", f"{benchmark}.convert", str(folder), *files, *CONVERT[benchmark]]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            raise UserError(f"converting {source} failed; see above", done.returncode)
        for side, language in (("source", "en"), ("reference", "de")):
            text = gzip.decompress((source / f"{TEST}.{language}.gz").read_bytes())
            (folder / f"test.{side}").write_bytes(text)
    return folder


def _train(
    benchmark: str,
    data: pathlib.Path,
    results: pathlib.Path,
    checkpoints: pathlib.Path,
    overrides: Sequence[str],
) -> int:
    environment = {
        **os.environ,
        "SYSTEM": PRESET,
        "DATA_DIR": str(data),
        "RESULT_DIR": str(results),
        "NEXP": "1",
        "PYTHON": sys.executable,
    }
    flags = [
        f"--checkpoint_dir={checkpoints}",
        "--keep_checkpoints=1000",
        # No run gets there: the checkpoint is chosen when all epochs are done.
        "--config.quality_target=1",
    ]
    command = [ROOT / benchmark / "run_and_time.sh", *flags, *overrides]
    return subprocess.run(command, env=environment, check=False).returncode


def evaluations(logs: Sequence[pathlib.Path]) -> list[Evaluation]:
    """The evaluations of a run and of those that resumed it, by epoch; the last of an epoch counts."""
    from compliance.logs import Record, read_log

    found, before = {}, 0.0
    steps: dict[int, int] = {}  # By the last epoch of a block.
    for log in logs:
        records = [r for r in read_log(log) if isinstance(r, Record)]
        start = next((r.time_ms for r in records if r.key == "run_start"), None)
        for record in records:
            if record.key == "train_loss":
                steps[record.metadata["epoch_num"]] = record.metadata["step"]
            if record.key == "eval_accuracy":
                epoch, minutes = record.metadata["epoch_num"], before + (record.time_ms - start) / 60000
                found[epoch] = Evaluation(
                    epoch, steps[epoch], minutes, record.metadata["bleu"], record.metadata["sacrebleu"]
                )
        before = max((e.minutes for e in found.values()), default=0.0)
    return [found[epoch] for epoch in sorted(found)]


def checkpoint_of(evaluation: Evaluation, folder: pathlib.Path) -> pathlib.Path:
    """The checkpoint of the weights that were evaluated; an interruption leaves others beside it.

    Raises:
      UserError: it is not there.
    """
    path = folder / f"checkpoint_{evaluation.step:08d}.npz"
    if not path.is_file():
        raise UserError(f"{path}: the checkpoint of the best epoch is gone; remove {folder} and run again")
    return path


def _test(
    benchmark: str, data: pathlib.Path, checkpoint: pathlib.Path, overrides: Sequence[str]
) -> dict[str, float]:
    """What `--evaluate` prints for the test captions."""
    flags = [
        f"--system={PRESET}",
        f"--data_dir={data}",
        f"--evaluate={checkpoint}",
        "--config.data.eval_source=test.source",
        "--config.data.eval_reference=test.reference",
        f"--config.num_eval_examples={TEST_LINES}",
    ]
    command = [sys.executable, "-m", benchmark, *overrides, *flags]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UserError(f"evaluating {checkpoint} failed; see above", done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def _publish(
    benchmark: str,
    results: pathlib.Path,
    found: Sequence[Evaluation],
    best: Evaluation,
    test: dict[str, float],
) -> None:
    """BENCHMARK.csv, BENCHMARK.md, BENCHMARK.png and the log, into studies/multi30k/."""
    folder = ROOT / "studies" / "multi30k"
    folder.mkdir(exist_ok=True)
    with open(folder / f"{benchmark}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(
            (e.epoch, round(e.minutes, 2), round(e.bleu, 2), round(e.sacrebleu, 2)) for e in found
        )
    table = (
        "| set | epochs | minutes | sacreBLEU | BLEU, lower-cased, as the benchmark's |\n|---|---|---|---|---|\n"
        f"| val | {best.epoch} | {best.minutes:.1f} | {best.sacrebleu:.1f} | {best.bleu:.1f} |\n"
        f"| {TEST} | {best.epoch} | {best.minutes:.1f} | {test['sacrebleu']:.1f} | {test['bleu']:.1f} |\n"
    )
    (folder / f"{benchmark}.md").write_text(table)
    for log in sorted((results / PRESET / benchmark).glob("result_*.txt")):
        shutil.copy(log, folder / f"{benchmark}-{log.name}")
    _draw(folder / f"{benchmark}.png", benchmark, found, test)
    print(table)


def _draw(path: pathlib.Path, benchmark: str, found: Sequence[Evaluation], test: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.plot([e.epoch for e in found], [e.sacrebleu for e in found], marker=".", label="validation")
    axes.axhline(
        test["sacrebleu"], linestyle="--", color="tab:orange", label=f"{TEST}, the best on validation"
    )
    axes.set(xlabel="epoch", ylabel="sacreBLEU", title=f"{benchmark}, Multi30k English to German")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
