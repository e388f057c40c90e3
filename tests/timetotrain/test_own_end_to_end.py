"""From a folder of one's own to a prediction on a new file in four commands: data, run, export, predict.

No flag repeats what the data say. `make e2e-own` runs it; ARGS="-k generated" leaves out the real data sets, which take
minutes each.
"""

import dataclasses
import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from common.config import benchmarks
from common.errors import UserError
from lab.bench.small_sets import timetotrain
from lab.studies import data
from tests import custom_sources
from timetotrain.run import log_ending

pytestmark = pytest.mark.e2e


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of data.

    Attributes:
      benchmark: benchmark to train.
      files: makes or finds the files in a folder: ([arguments of `timetotrain data`], a file to predict on).
      answer: key of a prediction.
      epochs: epochs of a run of minutes on real data.
      least: quality, in the log's unit, that such a run reaches; better than guessing.
    """

    benchmark: str
    files: Callable[[Path], tuple[list[Path], Path]]
    answer: str
    epochs: int = 2
    least: float = 0.0


def _photographs(folder: Path) -> tuple[list[Path], Path]:
    source = custom_sources.photographs(folder / "photos", 30)
    return [source], custom_sources.photographs(folder / "new", 1) / "red" / "red0.jpg"


def _objects(folder: Path) -> tuple[list[Path], Path]:
    source = custom_sources.objects(folder / "pictures", 16)
    return [source], custom_sources.objects(folder / "new", 1) / "images" / "0.png"


def _sentences(folder: Path) -> tuple[list[Path], Path]:
    new = folder / "new.txt"
    new.write_text("ban den\n")
    return list(custom_sources.sentences(folder / "text", 400)), new


def _clips(folder: Path) -> tuple[list[Path], Path]:
    source = custom_sources.clips(folder / "clips", 10)
    return [source], custom_sources.clips(folder / "new", 1) / "left" / "left0.mp4"


GENERATED = {
    "photographs": Case("resnet", _photographs, "classes"),
    "boxes": Case("ssd", _objects, "objects"),
    "masks": Case("maskrcnn", _objects, "objects"),
    "sentences": Case("transformer", _sentences, "translation"),
    "sentences-gnmt": Case("gnmt", _sentences, "translation"),
    "clips": Case("tsm_kinetics", _clips, "times"),
}
# Only for the generated sets: a few steps show that the four commands fit together.
SHORT = ["--config.train_epochs=2", "--config.epochs_per_block=2"]


def _skip(benchmark: str) -> None:
    if benchmark == "gnmt":
        pytest.importorskip("sacremoses", reason="sacremoses absent")
    if benchmark == "transformer":
        pytest.importorskip("official", reason="tf-models-official absent")


def _tiny_imagenet(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("tiny_imagenet_20")
    return [source], next((source / "val").glob("*/*.JPEG"))


def _nuclei(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("dsb2018_256")
    return [source], next((source / "images").glob("*.png"))


def _multi30k(folder: Path) -> tuple[list[Path], Path]:
    source, new = data.unpack("text") / "multi30k", folder / "new.en"
    new.write_bytes(b"".join(gzip.decompress((source / "val.en.gz").read_bytes()).splitlines(True)[:8]))
    return [source / "train.en.gz", source / "train.de.gz"], new


def _ucf101(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("ucf101_10_128")
    return [source / "metadata" / "clips.csv"], next(source.glob("*/*.mp4"))


REAL = {
    "clips": Case("tsm_kinetics", _ucf101, "times", 16, 0.2),
    "photographs": Case("resnet", _tiny_imagenet, "classes", 4, 0.15),
    "masks": Case("maskrcnn", _nuclei, "objects", 4, 0.05),
    "boxes": Case("ssd", _nuclei, "objects", 10, 0.05),
    "sentences": Case("transformer", _multi30k, "translation", 3, 0.01),
}


def four_commands(case: Case, folder: Path, flags: Sequence[str]) -> tuple[list[dict], log_ending.Ending]:
    """Goes from files to a prediction in `folder`; returns the answers and the end of the run's log."""
    sources, new = case.files(folder)
    records, checkpoints, results, model = (
        folder / n for n in ("records", "checkpoints", "results", "model")
    )
    answers = folder / "answers.json"
    timetotrain("data", case.benchmark, *sources, records)
    outputs = [f"--checkpoint_dir={checkpoints}", f"--result_dir={results}"]
    timetotrain("run", case.benchmark, f"--data_dir={records}", *outputs, *flags)
    timetotrain("export", checkpoints, model)
    timetotrain("predict", model, new, "--json", answers)
    ending = log_ending.read(results / "here" / case.benchmark / "result_0.txt")
    assert ending is not None and ending.evaluations
    actual = json.loads(answers.read_text(encoding="utf-8"))
    assert actual and case.answer in actual[0]
    return actual, ending


@pytest.mark.parametrize("kind", GENERATED)
def test_generated(kind: str, tmp_path: Path) -> None:
    case = GENERATED[kind]
    _skip(case.benchmark)
    answers, _ = four_commands(case, tmp_path, SHORT)
    if case.answer in ("classes", "times"):
        labels = json.loads((tmp_path / "records" / "description.json").read_text())["labels"]
        first = answers[0][case.answer]
        assert {answer["name"] for answer in first} <= set(labels) and first


@pytest.mark.parametrize("kind", REAL)
def test_real(kind: str, tmp_path: Path) -> None:
    """Trains some minutes."""
    case = REAL[kind]
    _skip(case.benchmark)
    try:
        case.files(tmp_path)
    except UserError as error:
        pytest.skip(str(error))
    values = {
        "train_epochs": case.epochs,
        "epochs_per_block": max(1, case.epochs // 2),
        "eval_epochs": "",
    }
    _, ending = four_commands(
        case, tmp_path, [f"--config.{field}={value}" for field, value in values.items()]
    )
    measure = benchmarks.module(case.benchmark, "presets").Config.quality
    best = max(ending.evaluations, key=measure.score)
    print(f"\n{kind}: {case.benchmark}, {measure.text(best)} after {ending.minutes:.2f} minutes")
    assert min(best.values() if isinstance(best, dict) else [best]) >= case.least
