"""Trains a translation benchmark on Multi30k, captions of photographs, English to German: BLEU on test_2016_flickr.

The preset's settings and the checkpoint were chosen on the validation captions; the best checkpoint translates the test
captions once. BLEU is sacreBLEU's with its default tokenizer, case-sensitive, on detokenized text.
"""

import argparse
import dataclasses
import gzip
import json
import pathlib
import sys
import tempfile
import zlib
from collections.abc import Sequence

from common import files
from common.errors import UserError
from lab.studies.data import ROOT, cache, filled, unpack
from lab.studies.runner import Runner, Study, add_flags, convert, guarded, settings
from timetotrain import figures

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
    study = Study(
        name=f"multi30k-{args.benchmark}",
        benchmark=args.benchmark,
        preset=PRESET,
        data=lambda: _convert(args.benchmark),
        # No run reaches this target, so all epochs are trained before the checkpoint is chosen.
        flags=settings(quality_target=1),
        checkpoints=1000,
    )
    runner = Runner(study, overrides=args.overrides)
    row = runner.named("all-epochs")
    runner.run_all([row])
    evaluations = evaluations_in(runner.log(row))
    if not evaluations:
        raise UserError(f"{runner.log(row)}: no evaluation was logged; lower the learning rate")
    best = max(evaluations, key=lambda e: e.sacrebleu)
    checkpoint = runner.checkpoints(row) / f"checkpoint_{best.step:08d}.npz"
    quality = _test(args.benchmark, study.data(), checkpoint, args.overrides)
    _publish(args.benchmark, evaluations, best, quality)
    return 0


def _convert(benchmark: str) -> pathlib.Path:
    """Returns the folder of training records, validation text and test text; it gets its name only when complete."""
    source = unpack("text") / "multi30k"
    # Not inside the text's folder, which may be a link to shared data.
    folder = cache() / f"multi30k-{benchmark}"
    try:
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


def evaluations_in(log: pathlib.Path) -> list[Evaluation]:
    """Reads the evaluations of a run, by epoch."""
    from compliance.log.logs import Record, read_log

    records = [r for r in read_log(log) if isinstance(r, Record)]
    start = next(r.time_ms for r in records if r.key == "run_start")
    steps = {r.metadata["epoch_num"]: r.metadata["step"] for r in records if r.key == "train_loss"}
    return [
        Evaluation(
            r.metadata["epoch_num"],
            steps[r.metadata["epoch_num"]],
            (r.time_ms - start) / 60000,
            r.metadata["bleu"],
            r.metadata["sacrebleu"],
        )
        for r in records
        if r.key == "eval_accuracy"
    ]


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
    benchmark: str, evaluations: Sequence[Evaluation], best: Evaluation, test: dict[str, float]
) -> None:
    """Writes lab/studies/multi30k/BENCHMARK.png; prints both sets' BLEU."""
    labels = {"xlabel": "epoch", "ylabel": "sacreBLEU", "title": f"{benchmark}, Multi30k English to German"}
    with figures.picture(ROOT / "lab/studies" / "multi30k" / f"{benchmark}.png", **labels) as axes:
        curve = [e.epoch for e in evaluations], [e.sacrebleu for e in evaluations]
        axes.plot(*curve, marker=".", label="validation")
        name = f"{TEST}, the best on validation"
        axes.axhline(test["sacrebleu"], linestyle="--", color="tab:orange", label=name)
    lines = [
        (name, best.epoch, f"{best.minutes:.1f}", f"{sacrebleu:.1f}", f"{bleu:.1f}")
        for name, sacrebleu, bleu in (
            ("val", best.sacrebleu, best.bleu),
            (TEST, test["sacrebleu"], test["bleu"]),
        )
    ]
    head = ("set", "epochs", "minutes", "sacreBLEU", "BLEU, lower-cased, as the benchmark's")
    print(files.markdown_table(head, lines))
