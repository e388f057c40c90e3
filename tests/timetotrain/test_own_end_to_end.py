"""From a folder of one's own to a prediction on a new file in four commands: data, run, export, predict.

No flag repeats what the data say. `make e2e-own` runs it; ARGS="-k generated" leaves out the real data sets, which take
minutes to hours each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from common.errors import UserError
from studies import data
from tests import own_sources

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.e2e


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of data.

    Attributes:
      benchmark: what is trained.
      sources: makes or finds the files in a folder: ([what `timetotrain data` gets], a file to predict on).
      answer: the key of a prediction.
      least: quality, in the log's unit, that real data reach: above what guessing does.
    """

    benchmark: str
    sources: Callable[[Path], tuple[list[Path], Path]]
    answer: str
    least: float = 0.0


def _photographs(folder: Path) -> tuple[list[Path], Path]:
    source = own_sources.photographs(folder / "photos", 30)
    return [source], own_sources.photographs(folder / "new", 1) / "red" / "red0.jpg"


def _objects(folder: Path) -> tuple[list[Path], Path]:
    source = own_sources.objects(folder / "pictures", 16)
    return [source], own_sources.objects(folder / "new", 1) / "images" / "0.png"


def _sentences(folder: Path) -> tuple[list[Path], Path]:
    new = folder / "new.txt"
    new.write_text("ban den\n")
    return list(own_sources.sentences(folder / "text", 400)), new


def _clips(folder: Path) -> tuple[list[Path], Path]:
    source = own_sources.clips(folder / "clips", 10)
    return [source], own_sources.clips(folder / "new", 1) / "left" / "left0.mp4"


def _tiny_imagenet(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("tiny_imagenet_20")
    return [source], next((source / "val").glob("*/*.JPEG"))


def _nuclei(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("dsb2018_256")
    return [source], next((source / "images").glob("*.png"))


def _multi30k(_: Path) -> tuple[list[Path], Path]:
    folder = data.unpack("text") / "multi30k"
    return [folder / "train.en.gz", folder / "train.de.gz"], folder / "val.en.gz"


def _ucf101(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("ucf101_10_128")
    return [source / "metadata" / "clips.csv"], next(source.glob("*/*.mp4"))


GENERATED = {
    "photographs": Case("resnet", _photographs, "classes"),
    "boxes": Case("ssd", _objects, "objects"),
    "masks": Case("maskrcnn", _objects, "objects"),
    "sentences": Case("transformer", _sentences, "translation"),
    "sentences-gnmt": Case("gnmt", _sentences, "translation"),
    "clips": Case("tsm_kinetics", _clips, "times"),
}
REAL = {
    "photographs": Case("resnet", _tiny_imagenet, "classes", 0.2),
    "boxes": Case("ssd", _nuclei, "objects", 0.05),
    "masks": Case("maskrcnn", _nuclei, "objects", 0.05),
    "sentences": Case("transformer", _multi30k, "translation", 0.1),
    "clips": Case("tsm_kinetics", _ucf101, "times", 0.2),
}
# Only for the generated sets: a few steps show that the four commands fit together.
SHORT = ["--config.train_epochs=2", "--config.epochs_per_block=2"]


def _skip(benchmark: str) -> None:
    if benchmark == "gnmt":
        pytest.importorskip("sacremoses", reason="sacremoses absent")
    if benchmark == "transformer":
        pytest.importorskip("official", reason="tf-models-official absent")


def timetotrain(*words: str | Path) -> str:
    """Runs a command; returns what it printed."""
    line = [sys.executable, "-m", "timetotrain", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=6 * 3600)
    assert done.returncode == 0, f"{' '.join(line)}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
    return done.stdout


def four_commands(case: Case, folder: Path, *flags: str) -> tuple[list[dict], float | None, float]:
    """Returns (the predictions, the best quality in the log, seconds of the run)."""
    sources, new = case.sources(folder)
    timetotrain("data", case.benchmark, *sources, folder / "records")
    began = time.monotonic()
    timetotrain(
        "run",
        case.benchmark,
        "--system=here",
        f"--data_dir={folder / 'records'}",
        f"--checkpoint_dir={folder / 'checkpoints'}",
        f"--result_dir={folder / 'results'}",
        *flags,
    )
    seconds = time.monotonic() - began
    timetotrain("export", folder / "checkpoints", folder / "model")
    timetotrain("predict", folder / "model", new, "--json", folder / "answers.json")
    return json.loads((folder / "answers.json").read_text()), _quality(folder / "results"), seconds


def _quality(results: Path) -> float | None:
    """Returns the best evaluation of the log; of several values, such as boxes and masks, the least counts."""
    (log,) = results.rglob("result_0.txt")
    found = []
    for line in log.read_text().splitlines():
        record = json.loads(line.partition(":::MLLOG ")[2] or "{}")
        if record.get("key") == "eval_accuracy":
            value = record["value"]
            found.append(min(value.values()) if isinstance(value, dict) else float(value))
    return max(found, default=None)


@pytest.mark.parametrize("kind", GENERATED)
def test_generated(kind: str, tmp_path: Path) -> None:
    case = GENERATED[kind]
    _skip(case.benchmark)
    answers, quality, _ = four_commands(case, tmp_path, *SHORT)
    assert quality is not None
    assert answers and case.answer in answers[0]
    if case.answer in ("classes", "times"):
        labels = json.loads((tmp_path / "records" / "description.json").read_text())["labels"]
        named = answers[0][case.answer]
        assert {found["name"] for found in named} <= set(labels) and named


@pytest.mark.parametrize("kind", REAL)
def test_real(kind: str, tmp_path: Path) -> None:
    case = REAL[kind]
    _skip(case.benchmark)
    try:
        case.sources(tmp_path)
    except UserError as error:
        pytest.skip(str(error))
    answers, quality, seconds = four_commands(case, tmp_path)
    print(f"\n{kind}: {case.benchmark}, quality {quality:.4g} after {seconds / 60:.1f} minutes")
    assert quality >= case.least
    assert answers and case.answer in answers[0]
