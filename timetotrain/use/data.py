"""Implements `timetotrain data BENCHMARK FILES OUT`: turns your files into records, a description and a page."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import benchmarks, data_description
from common.errors import UserError, answering, near
from common.files import ROOT

if TYPE_CHECKING:
    from common.config.data_description import Description
    from common.data.folder_conversion import Conversion, Converter, Options
    from common.data.report import Report

# The benchmarks that can convert your own files, and the files that they accept.
NAMES = tuple(name for name in benchmarks.NAMES if (ROOT / name / "custom_data.py").is_file())
_PAIRS = ("transformer", "gnmt")
_PLAIN = ("llama31_8b",)  # Any text.
_TABLES = (".csv", ".tsv", ".txt", ".json", ".jsonl")  # tables refuses the last two by name.
_SHOWN, _CARDS = 16, 24  # Training examples that are asked for, and all examples on the page.
_FULL = (errno.ENOSPC, errno.EDQUOT)  # The errors of a full disk.
_LISTED = 20  # Broken files on the screen; the page lists all.

_EXAMPLES = """
examples:
  timetotrain data resnet PHOTOS OUT             a folder for each class, or train/ and val/ with them
  timetotrain data ssd FOLDER OUT                COCO's JSON beside the pictures, or Pascal VOC's XML
  timetotrain data maskrcnn FOLDER OUT           COCO's JSON with masks
  timetotrain data transformer A.en A.de OUT     two text files, a sentence a line
  timetotrain data gnmt PAIRS.tsv OUT            one file of sentence, tab, translation
  timetotrain data llama31_8b BOOK.txt OUT       text files or a folder of them; --tokenizer reads other than bytes
  timetotrain data tsm_kinetics CLIPS OUT        a folder for each class of videos, or a CSV of path,label,split
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.description = (
        "Turns your own files into the records that a benchmark reads, with description.json, from which a run takes "
        "classes and counts, and data.html, which shows what was made."
    )
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("benchmark", help=", ".join(NAMES))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILES", help="your files or folder, then OUT")
    add = parser.add_argument
    add("--eval_part", type=float, metavar="PART", help="fraction to hold out (default: 0.1; text: 0.05)")
    add("--eval", nargs="+", type=Path, default=[], metavar="FILE", help="evaluate on this text instead")
    add("--seed", type=int, default=0, help="seed of the split (default: %(default)s)")
    add("--annotations", type=Path, metavar="FILE", help="COCO's JSON, if the folder has several")
    add("--eval_annotations", type=Path, metavar="FILE", help="the same, for pictures to evaluate on")
    add("--vocabulary_size", type=int, default=0, metavar="N", help="subwords of text (default: by its size)")
    add("--max_length", type=int, default=0, metavar="N", help="tokens of a sentence (default: by the text)")
    add("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json for llama31_8b (default: bytes)")
    add("--languages", nargs=2, metavar=("FROM", "TO"), help="codes such as en de (default: files' suffixes)")
    add("--short_side", type=int, default=256, metavar="PIXELS", help="for videos (default: %(default)s)")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    add("--strict", action="store_true", help="end with an error if anything in report.json is suspicious")
    add("--show", action="store_true", help="write no records, only what they would be: the page OUT.html")
    add("--no_page", action="store_true", help="write no data.html")


@answering(interrupted="interrupted; the same command goes on")
def run(options: argparse.Namespace) -> int:
    """Converts the files, writes description and page; returns the exit status."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    benchmark = options.benchmark
    if benchmark not in NAMES:
        hint = near(benchmark, NAMES)
        raise UserError(
            f"{benchmark}: no benchmark that takes data of your own{hint}; known: {', '.join(NAMES)}"
        )
    *sources, out = options.files
    _check_sources(benchmark, sources, out)
    if options.show:
        return _show(options, out)
    module: Converter = benchmarks.module(benchmark, "custom_data")
    settings = _options(options, benchmark)
    report, before = settings.report, _inside(out)
    try:
        result = module.convert(sources, out, settings)
        report.complete(result.balance, result.counted, result.description.split)
        report.write(out)
        page = None if options.no_page else _page(module, out, result, report)
    except OSError as error:
        _say_left_out(report)
        _clear(out, before, error)
        where, denied = error.filename or out, error.errno in (errno.EACCES, errno.EPERM)
        fix = "give yourself permission to read it" if denied else "free some space or name another folder"
        raise UserError(f"{where}: {error.strerror or error}; {fix}") from error
    except UserError as error:
        _say_left_out(report)
        _clear(out, before, error)
        raise
    if options.strict and report.suspicious:
        # No run takes the records; the command without --strict ends soon.
        data_description.begin(out, benchmark)
    else:
        _say(out, result, page, report)
    report.check(options.strict)
    return 0


def _show(options: argparse.Namespace, out: Path) -> int:
    """Converts into a folder that is deleted, and keeps the page as OUT.html; returns the exit status."""
    page = out.with_name(f"{out.name}.html")
    with tempfile.TemporaryDirectory(prefix=f"{out.name}-", dir=out.absolute().parent) as scratch:
        folder = Path(scratch, out.name)
        words = {**vars(options), "files": [*options.files[:-1], folder], "show": False, "no_page": False}
        status = run(argparse.Namespace(**words))
        if not status:
            shutil.copyfile(folder / "data.html", page)
    if not status:
        print(f"nothing was written but {page}; leave out --show to write the records")
    return status


def _to_beat(description: Description) -> list[tuple[str, str]]:
    """Returns the quality of an answer without a network, which a run has to beat; [] if none is known."""
    least = description.baseline
    if not least:
        return []
    quality = benchmarks.module(description.benchmark, "config").Config.quality.text(least["value"])
    return [("to beat", f"{quality}, {least['what']}")]


def _inside(folder: Path) -> int:
    """Returns the number of entries in a folder; -1 if it does not exist."""
    try:
        return len(os.listdir(folder)) if os.path.isdir(folder) else -1
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; name another folder") from error


def _clear(out: Path, before: int, error: Exception) -> None:
    """Removes what a failed conversion wrote into a folder that was new or empty, so that none is half made.

    After a full disk the records stay, because the same command goes on with them.
    """
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "errno", None) in _FULL or type(cause).__name__ == "ResourceExhaustedError":
            return
        cause = cause.__cause__
    if before > 0 or not os.path.isdir(out):
        return
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if before < 0:
        out.rmdir()


def _check_sources(benchmark: str, sources: Sequence[Path], out: Path) -> None:
    usage = "FOLDER OUT" if benchmark not in _PAIRS else "SOURCE TARGET OUT, or PAIRS.tsv OUT"
    usage = "FILES OUT" if benchmark in _PLAIN else usage
    most = 2 if benchmark in _PAIRS else math.inf if benchmark in _PLAIN else 1
    if not 1 <= len(sources) <= most:
        raise UserError(f"timetotrain data {benchmark} takes {usage}")
    for path in sources:
        if not os.path.exists(path):
            raise UserError(f"{path}: not there; timetotrain data {benchmark} takes {usage}")
        table = benchmark in (*_PAIRS, *_PLAIN) or path.suffix.lower() in _TABLES
        if os.path.isfile(path) and not table:
            raise UserError(
                f"{path}: a file; give the folder of your files, unpacked, or a CSV file of path,label"
            )
    if os.path.isfile(out):
        raise UserError(f"{out}: a file; the last name is the folder to make")


def _options(options: argparse.Namespace, benchmark: str) -> Options:
    from common.data.folder_conversion import Options

    part = options.eval_part
    if options.workers < 1 or options.seed < 0 or options.short_side < 16:
        raise UserError("--workers: at least 1; --seed: at least 0; --short_side: at least 16")
    fields = {field.name for field in dataclasses.fields(Options)}
    values = {name: value for name, value in vars(options).items() if name in fields}
    values["eval_part"] = (0.05 if benchmark in (*_PAIRS, *_PLAIN) else 0.1) if part is None else part
    languages = tuple(options.languages) if options.languages else None
    return Options(**{**values, "eval_sources": tuple(options.eval), "languages": languages})


def _page(module: Converter, out: Path, conversion: Conversion, report: Report) -> Path:
    from common.data import dataset_page

    page = dataclasses.replace(conversion, facts=[*conversion.facts, *_to_beat(conversion.description)])
    try:
        cards = module.preview(out, conversion.description, _SHOWN)[:_CARDS]
        caption = f"As the preset {module.PREVIEW} reads them; another preset may have another size."
    except UserError as error:  # The data are complete; the page reports the preview's failure.
        cards, caption = [], str(error)
    return dataset_page.write(out, page, cards, caption, report)


def _say(out: Path, conversion: Conversion, page: Path | None, report: Report) -> None:
    description = conversion.description
    for what, (value, by) in report.choices.items():
        print(f"chosen: {what}: {value}, by {by}", file=sys.stderr)
    _say_left_out(report)
    for kind in ("skipped", "changed", "suspicious"):
        for line in report.summaries(kind):
            print(f"{kind}: {line}", file=sys.stderr)
    count = len(conversion.balance)
    classes = f", {count} class{'es' if count != 1 else ''}" if count else ""
    split = description.split
    print(f"{out}: {split['train']} for training, {split['eval']} for evaluation{classes}")
    if page:
        print(f"look at {page}")
    for name, value in _to_beat(description):
        print(f"{name}: {value}")
    print(f"next: timetotrain run {description.benchmark} --system=here --data_dir={out}")


def _say_left_out(report: Report) -> None:
    for line in report.lines[:_LISTED]:
        print(f"left out: {line}", file=sys.stderr)
    more = len(report.lines) - _LISTED
    if more > 0:
        reasons = ", ".join(f"{one.count} x {reason}" for reason, one in report.left_out.items())
        print(f"left out: {more} more; in all {reasons}", file=sys.stderr)
