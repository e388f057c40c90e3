"""From a folder of one's own to a prediction on a new file in four commands: data, run, export, predict.

No flag repeats what the data say. `make e2e-own` runs it; ARGS="-k generated" leaves out the real data sets, which take
minutes each.
"""

import json
from pathlib import Path

import pytest

from common.errors import UserError
from lab.bench.files_to_prediction import REAL, Case, four_commands, measure, reached
from tests import custom_sources

pytestmark = pytest.mark.e2e


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


@pytest.mark.parametrize("kind", GENERATED)
def test_generated(kind: str, tmp_path: Path) -> None:
    case = GENERATED[kind]
    _skip(case.benchmark)
    actual = four_commands(case, tmp_path, SHORT)
    assert actual.ending.evaluations
    assert actual.answers and case.answer in actual.answers[0]
    if case.answer in ("classes", "times"):
        labels = json.loads((tmp_path / "records" / "description.json").read_text())["labels"]
        named = actual.answers[0][case.answer]
        assert {answer["name"] for answer in named} <= set(labels) and named


@pytest.mark.parametrize("kind", REAL)
def test_real(kind: str, tmp_path: Path) -> None:
    """Trains some minutes; `python -m lab.bench.files_to_prediction --whole` trains as long as `here` chooses."""
    case = REAL[kind]
    _skip(case.benchmark)
    try:
        case.files(tmp_path)
    except UserError as error:
        pytest.skip(str(error))
    row = measure(kind, tmp_path)
    print(f"\n{kind}: {case.benchmark}, {row['shown']} after {row['minutes']} minutes")
    assert reached(row)
