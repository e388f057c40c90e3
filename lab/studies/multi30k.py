"""Trains a translation benchmark on Multi30k, captions of photographs, English to German: BLEU on test_2016_flickr.

The preset's settings and the checkpoint were chosen on the validation captions; the best checkpoint translates the test
captions once. BLEU is sacreBLEU's with its default tokenizer, case-sensitive, on detokenized text. An interrupted study
resumes from its last checkpoint.
"""

import argparse
import dataclasses
import fcntl
import gzip
import json
import pathlib
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from common import files
from common.errors import UserError
from lab.studies import report
from lab.studies.data import ROOT, cache, filled, unpack
from lab.studies.runner import add_flags, convert, guarded, run_and_time

PRESET = "cpu-multi30k"
TEST, TEST_LINES = "test_2016_flickr", 1000
# Conversion flags per benchmark; its preset has the resulting numbers of tokens and sequences.
CONVERT = {
    "transformer": ("--vocabulary-size=8000", "--max-length=60", "--packed-length=128", "--shards=4"),
    "gnmt": ("--merges=8000", "--max-length=48", "--shards=4"),
}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run: epoch and step, minutes since run_start, both BLEU scores from 0 to 100."""

    epoch: int
    step: int
    minutes: float
    bleu: float
    sacrebleu: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies multi30k`."""
    parser.add_argument("benchmark", choices=sorted(CONVERT), help="which network")
    add_flags(parser, "overrides")


def run(args: argparse.Namespace) -> int:
    """Converts the captions, trains, translates the test set with the best checkpoint, draws the curve."""
    data = _convert(args.benchmark)
    results = ROOT / "results" / f"study-multi30k-{args.benchmark}"
    checkpoints = results / "checkpoints"
    folder = results / PRESET / args.benchmark
    keep_killed(folder)
    flags = [
        f"--checkpoint_dir={checkpoints}",
        "--keep_checkpoints=1000",
        # No run reaches this target, so all epochs are trained before the checkpoint is chosen.
        "--config.quality_target=1",
    ]
    run_and_time(args.benchmark, PRESET, data, results, [*flags, *args.overrides])
    logs = [*folder.glob("result_*.txt"), *folder.glob("killed_*.txt")]
    found = evaluations(logs)
    if not found:
        raise UserError(f"{results}: no evaluation was logged; remove the folder and run again")
    best = max(found, key=lambda e: e.sacrebleu)
    quality = _test(args.benchmark, data, checkpoint_of(best, checkpoints), args.overrides)
    _publish(args.benchmark, found, best, quality)
    return 0


def _convert(benchmark: str) -> pathlib.Path:
    """Returns the folder of training records, validation text and test text; it gets its name only when complete."""
    source = unpack("text") / "multi30k"
    folder = (
        cache() / f"multi30k-{benchmark}"
    )  # Not inside the text's folder, which may be a link to shared data.

    try:
        if folder.is_dir() and not (folder / "test.reference").is_file():
            shutil.rmtree(folder)  # A partial conversion by an earlier version of the study.
        return filled(folder, lambda made: _fill(benchmark, source, made))
    except OSError as error:
        raise UserError(
            f"{folder}: cannot write: {error.strerror or error}; free space there or set TTT_CACHE"
        ) from error


def _fill(benchmark: str, source: pathlib.Path, folder: pathlib.Path) -> None:
    """Converts the training and validation captions, and copies the test captions."""
    texts = [
        f"--{name}-{side}={source / part}.{language}.gz"
        for name, part in (("train", "train"), ("eval", "val"))
        for side, language in (("source", "en"), ("target", "de"))
    ]
    tests = {}
    for side, language in (("source", "en"), ("reference", "de")):
        path = source / f"{TEST}.{language}.gz"
        try:
            tests[f"test.{side}"] = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path}: cannot read it: {error}; get the archive again") from error
    convert(source, f"{benchmark}.convert", folder, *texts, *CONVERT[benchmark])
    for name, text in tests.items():
        (folder / name).write_bytes(text)


def keep_killed(folder: pathlib.Path) -> None:
    """Renames a killed run's log, so that the next run does not overwrite it.

    The next run resumes from the last checkpoint, so it does not repeat earlier epochs' evaluations, which are only in
    this log.

    Raises:
      UserError: a run is writing the log.
    """
    for log in sorted(folder.glob("result_*.txt.partial")):
        with open(log, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{log}: another run is writing it; wait for its end, or end it") from None
            log.rename(folder / f"killed_{len(list(folder.glob('killed_*.txt')))}.txt")


def evaluations(logs: Iterable[pathlib.Path]) -> list[Evaluation]:
    """Reads the evaluations of a run and of the runs that resumed it, by epoch; the last one of an epoch counts.

    Raises:
      UserError: a log lacks the step of an evaluation.
    """
    found, before = {}, 0.0
    for start, log, records in sorted(filter(None, map(_begun, sorted(logs))), key=lambda run: run[0]):
        for record in records:
            if record.key != "eval_accuracy":
                continue
            epoch, minutes = record.metadata["epoch_num"], before + (record.time_ms - start) / 60000
            step = _step(records, epoch)
            if step is None:
                raise UserError(f"{log}:{record.line}: does not say after which step; remove {log.parent}")
            found[epoch] = Evaluation(
                epoch, step, minutes, record.metadata["bleu"], record.metadata["sacrebleu"]
            )
        before = max((e.minutes for e in found.values()), default=0.0)
    return [found[epoch] for epoch in sorted(found)]


def _begun(log: pathlib.Path) -> tuple[float, pathlib.Path, list[Any]] | None:
    """Returns (time of run_start, the log, its records); None for a log without run_start."""
    from compliance.log.logs import Record, read_log

    records = [r for r in read_log(log) if isinstance(r, Record)]
    start = next((r.time_ms for r in records if r.key == "run_start"), None)
    return None if start is None else (start, log, records)


def _step(records: Sequence[Any], epoch: int) -> int | None:
    """Finds the step at which a log's run evaluated an epoch.

    A run that resumes after a kill during an evaluation repeats only this evaluation, in a block without steps and
    train_loss. Then the step is the one from which it resumed. Earlier logs may end in the middle of this block.
    """
    said = [r.metadata for r in records if r.key == "train_loss"]
    steps = [metadata["step"] for metadata in said if metadata["epoch_num"] == epoch]
    steps = steps or [r.value for r in records if r.key == "resumed_from_step"]
    return steps[-1] if steps else None


def checkpoint_of(evaluation: Evaluation, folder: pathlib.Path) -> pathlib.Path:
    """Finds the checkpoint of the evaluated weights; after an interruption there are others next to it.

    Raises:
      UserError: the checkpoint does not exist.
    """
    path = folder / f"checkpoint_{evaluation.step:08d}.npz"
    if not path.is_file():
        raise UserError(f"{path}: the checkpoint of the best epoch is gone; remove {folder} and run again")
    return path


def _test(
    benchmark: str, data: pathlib.Path, checkpoint: pathlib.Path, overrides: Sequence[str]
) -> dict[str, float]:
    """Runs `--evaluate` on the test captions and returns the printed quality."""
    flags = [
        f"--system={PRESET}",
        f"--data_dir={data}",
        f"--evaluate={checkpoint}",
        "--config.data.eval_source=test.source",
        "--config.data.eval_reference=test.reference",
        f"--config.num_eval_examples={TEST_LINES}",
    ]
    command = [sys.executable, "-m", benchmark, *overrides, *flags]
    with tempfile.TemporaryFile("w+") as output:
        status = guarded(command, stdout=output)
        if status:
            raise UserError(f"evaluating {checkpoint} failed; see above", status)
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def _publish(
    benchmark: str,
    found: Sequence[Evaluation],
    best: Evaluation,
    test: dict[str, float],
) -> None:
    """Writes lab/studies/multi30k/BENCHMARK.png; prints both sets' BLEU."""
    folder = ROOT / "lab/studies" / "multi30k"
    both = {"val": (best.sacrebleu, best.bleu), TEST: (test["sacrebleu"], test["bleu"])}
    lines = [
        (name, best.epoch, f"{best.minutes:.1f}", *(f"{value:.1f}" for value in bleu))
        for name, bleu in both.items()
    ]
    _draw(folder / f"{benchmark}.png", benchmark, found, test)
    head = ("set", "epochs", "minutes", "sacreBLEU", "BLEU, lower-cased, as the benchmark's")
    print(files.markdown_table(head, lines))


def _draw(path: pathlib.Path, benchmark: str, found: Sequence[Evaluation], test: dict[str, Any]) -> None:
    labels = {"xlabel": "epoch", "ylabel": "sacreBLEU", "title": f"{benchmark}, Multi30k English to German"}
    with report.picture(path, **labels) as axes:
        axes.plot([e.epoch for e in found], [e.sacrebleu for e in found], marker=".", label="validation")
        best = f"{TEST}, the best on validation"
        axes.axhline(test["sacrebleu"], linestyle="--", color="tab:orange", label=best)
