"""Small sets of real files: what `run --system=here` reaches in minutes, beside answers without a network.

    python -m lab.bench.small_sets [--sets "100 digits of MNIST" ...] [--minutes 5]

Each set is a part of one that docs/studies.md names. A run that takes longer is stopped. The baseline is that of
`timetotrain data`; for pictures there is also a peer, if scikit-image and scikit-learn are installed: gradients and
colors with a support vector machine. Measuring a set again replaces its row in the result file.
"""

import csv
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.config import benchmarks
from common.errors import UserError, answering
from common.files import write_csv
from lab.bench.files_to_prediction import OUTPUT, find, timetotrain
from lab.bench.harness import ROOT, scripts
from lab.bench.harness.scripts import head, write
from lab.studies import data
from mnist import idx
from timetotrain.run import history

GRACE_SECONDS = 120


def _digits(train: int, held: int, folder: Path) -> list[Path]:
    for part, split, count in (("train", "train", train), ("val", "test", held)):
        images, labels = idx.load(data.unpack("mnist"), split)
        for i in range(count):
            place = folder / part / str(labels[i])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i].reshape(28, 28)).save(place / f"{i}.png")
    return [folder]


def _photographs(classes: int, train: int, held: int, folder: Path) -> list[Path]:
    source = data.unpack("tiny_imagenet_20")
    for part, count in (("train", train), ("val", held)):
        for label in sorted((source / part).iterdir())[:classes]:
            (folder / part / label.name).mkdir(parents=True)
            for picture in sorted(label.rglob("*.JPEG"))[:count]:
                shutil.copy(picture, folder / part / label.name)
    return [folder]


def _clips(classes: int, train: int, held: int, folder: Path) -> list[Path]:
    source = data.unpack("ucf101_10_128")
    every = list(csv.DictReader((source / "metadata/clips.csv").read_text(encoding="utf-8").splitlines()))
    rows = []
    for label in sorted({row["label"] for row in every})[:classes]:
        for part, count in (("train", train), ("test", held)):
            rows += [row for row in every if (row["label"], row["split"]) == (label, part)][:count]
    for row in rows:
        (folder / row["path"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / row["path"], folder / row["path"])
    write_csv(folder / "clips.csv", list(rows[0]), [row.values() for row in rows])
    return [folder / "clips.csv"]


def _sentences(count: int, folder: Path) -> list[Path]:
    paths = [folder / f"text.{language}" for language in ("en", "de")]
    for path in paths:
        whole = gzip.decompress((data.unpack("text") / f"multi30k/train{path.suffix}.gz").read_bytes())
        path.write_bytes(b"".join(whole.splitlines(True)[:count]))
    return paths


SETS: dict[str, tuple] = {  # Benchmark, maker of the files, its sizes.
    "100 digits of MNIST": ("resnet", _digits, 100, 60),
    "810 digits of MNIST": ("resnet", _digits, 810, 90),
    "3 classes of Tiny ImageNet": ("resnet", _photographs, 3, 15, 5),
    "10 classes of Tiny ImageNet": ("resnet", _photographs, 10, 40, 8),
    "2 classes of Tiny ImageNet": ("resnet", _photographs, 2, 400, 50),
    "3 classes of UCF101": ("tsm_kinetics", _clips, 3, 6, 4),
    "5 classes of UCF101": ("tsm_kinetics", _clips, 5, 30, 10),
    "500 pairs of Multi30k": ("transformer", _sentences, 500),
}


def _features(paths: list[Path]) -> Iterator[np.ndarray]:
    from skimage import feature

    for path in paths:
        picture = Image.open(path).convert("RGB").resize((48, 48))
        colors = np.asarray(picture).reshape(-1, 3).astype(int) * 4 // 256 @ (16, 4, 1)
        gradients = feature.hog(np.asarray(picture.convert("L")), 9, (8, 8), (2, 2))
        yield np.concatenate([gradients, np.bincount(colors, minlength=64) / len(colors)])


def _peer(folder: Path) -> dict[str, Any] | None:
    try:
        from sklearn import pipeline, preprocessing, svm

        train, held = (sorted((folder / part).rglob("*.*")) for part in ("train", "val"))
        model = pipeline.make_pipeline(preprocessing.StandardScaler(), svm.SVC(C=10))
        model.fit(list(_features(train)), [path.parent.name for path in train])
        accuracy = model.score(list(_features(held)), [path.parent.name for path in held])
    except ImportError:
        return None
    return {"value": round(accuracy, 4), "what": "gradients, colors and a support vector machine"}


def measure(name: str, folder: Path, minutes: float) -> dict[str, Any]:
    """Returns a set's row. Raises UserError: the data are missing, or a command failed."""
    benchmark, make, *sizes = SETS[name]
    files, records, results = (folder / part for part in ("files", "rec", "res"))
    files.mkdir()
    timetotrain("data", benchmark, *make(*sizes, files), records)
    flags = ["--system=here", f"--data_dir={records}", f"--result_dir={results}"]
    run = subprocess.Popen([sys.executable, "-m", "timetotrain", "run", benchmark, *flags], cwd=ROOT)
    try:
        run.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        run.terminate()
        run.wait(GRACE_SECONDS)
    place = results / "here" / benchmark
    evaluations = [one for one in history.read(place / "history_0.jsonl") if one["kind"] == "evaluation"]
    if not evaluations:
        raise UserError(f"{name}: the run has no evaluation; give more --minutes")
    about = json.loads((records / "description.json").read_text(encoding="utf-8"))
    ran = json.loads((place / "run.json").read_text(encoding="utf-8"))
    return {
        "set": name,
        "benchmark": benchmark,
        "train": about["split"]["train"],
        "eval": about["split"]["eval"],
        "epochs": evaluations[-1]["epoch"],
        "of": find(ran, "train_epochs"),
        "quality": max(
            (one["value"] for one in evaluations),
            key=benchmarks.module(benchmark, "presets").Config.quality.score,
        ),
        "baseline": about["baseline"],
        "peer": _peer(files) if benchmark == "resnet" else None,
        "outlook": str(find(ran, "outlook")).partition(" beat")[0],
        **head("scikit-learn", "scikit-image"),
    }


@answering()
def main() -> int:
    parser = scripts.parser(__doc__, OUTPUT)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="default: all")
    parser.add_argument("--minutes", type=float, default=5, help="a run is stopped after these; default: 5")
    options = parser.parse_args()
    for name in options.sets:
        with tempfile.TemporaryDirectory(prefix="timetotrain-small-") as folder:
            row = measure(name, Path(folder), options.minutes)
        print(json.dumps(row), flush=True)
        result = json.loads(options.output.read_text(encoding="utf-8")) if options.output.is_file() else {}
        rows = {one["set"]: one for one in result.get("sets", ())} | {name: row}
        write({**result, "sets": [rows[one] for one in SETS if one in rows]}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
