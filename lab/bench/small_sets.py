"""Small sets of real files: what `run --system=here` reaches in minutes, beside answers without a network and peers.

    python -m lab.bench.small_sets [--sets "100 digits of MNIST" ...] [--minutes 5]

Each set is a part of one that docs/studies.md names, or is generated. A run that takes longer is stopped. The baseline
is that of `timetotrain data`: the most frequent class or a regression, the median box, the nearest sentence. The peer
of pictures and of the middle frames of clips is the better of the k nearest neighbors of a thumbnail and a small
network of Keras that trains as long as ours, and is evaluated as often. Measuring a set again replaces its row in the
result file.
"""

import csv
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from common.config import benchmarks
from common.data import videos
from common.detection import drawing
from common.errors import UserError, answering
from common.files import write_csv
from lab.bench.harness import ROOT, scripts
from lab.bench.harness.scripts import head, write
from lab.studies import data
from mnist import idx
from timetotrain.run import history

OUTPUT = "own_data.json"
GRACE_SECONDS = 120
_TIMEOUT_SECONDS = 6 * 3600
_SIDE, _NEIGHBORS, _BATCH = (
    32,
    5,
    32,
)  # Pixels of a thumbnail's side, neighbors that vote, pictures in a batch.


def _digits(train: int, evaluation: int, folder: Path) -> list[Path]:
    for part, split, count in (("train", "train", train), ("val", "test", evaluation)):
        images, labels = idx.load(data.unpack("mnist"), split)
        for i in range(count):
            place = folder / part / str(labels[i])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[i].reshape(28, 28)).save(place / f"{i}.png")
    return [folder]


def _photographs(classes: int, train: int, evaluation: int, folder: Path) -> list[Path]:
    source = data.unpack("tiny_imagenet_20")
    for part, count in (("train", train), ("val", evaluation)):
        for label in sorted((source / part).iterdir())[:classes]:
            (folder / part / label.name).mkdir(parents=True)
            for picture in sorted(label.rglob("*.JPEG"))[:count]:
                shutil.copy(picture, folder / part / label.name)
    return [folder]


def _clips(classes: int, train: int, evaluation: int, folder: Path) -> list[Path]:
    source = data.unpack("ucf101_10_128")
    every = list(csv.DictReader((source / "metadata/clips.csv").read_text(encoding="utf-8").splitlines()))
    rows = []
    for label in sorted({row["label"] for row in every})[:classes]:
        for part, count in (("train", train), ("test", evaluation)):
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


def _stripes(train: int, evaluation: int, folder: Path) -> list[Path]:
    """Generated: noisy stripes of four directions, which are the classes."""
    rng, (y, x) = np.random.default_rng(5), np.mgrid[:64, :64]
    for part, count in (("train", train), ("val", evaluation)):
        for number in range(count):
            angle = np.pi * (number % 4) / 4
            waves = np.sin(
                (x * np.cos(angle) + y * np.sin(angle)) * rng.uniform(0.3, 0.8) + rng.uniform(0, 6)
            )
            pixels = 128 + 50 * waves[..., None] + rng.normal(0, 40, (64, 64, 3))
            place = folder / part / f"direction {number % 4}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number}.png")
    return [folder]


def _annotated(name: str, files: tuple[str, str], train: int, evaluation: int, folder: Path) -> list[Path]:
    """A part of a COCO set: the first pictures of each split."""
    source = data.unpack(name)
    for part, file, count in zip(("train", "val"), files, (train, evaluation)):
        content = json.loads((source / file).read_text(encoding="utf-8"))
        content["images"] = content["images"][:count]
        ids = {image["id"] for image in content["images"]}
        content["annotations"] = [one for one in content["annotations"] if one["image_id"] in ids]
        (folder / part).mkdir()
        for image in content["images"]:
            shutil.copy(source / "images" / Path(image["file_name"]).name, folder / part)
        (folder / part / "instances.json").write_text(json.dumps(content))
    return [folder]


def _figures(train: int, evaluation: int, folder: Path) -> list[Path]:
    """Generated: overlapping figures with boxes and masks."""
    figures = drawing.Pictures(train_images=train, eval_images=evaluation)
    for part in ("train", "val"):
        content, encoded = drawing.annotations(figures, part)
        (folder / part).mkdir()
        for image in content["images"]:
            (folder / part / image["file_name"]).write_bytes(encoded[image["id"]])
        (folder / part / "instances.json").write_text(json.dumps(content))
    return [folder]


_COCO = ("coco200", ("instances_train2017_100.json", "instances_val2017_100.json"))
_NUCLEI = ("dsb2018_256", ("instances_train.json", "instances_val.json"))
SETS: dict[str, tuple] = {  # Benchmark, maker of the files, its sizes.
    "100 digits of MNIST": ("resnet", _digits, 100, 60),
    "810 digits of MNIST": ("resnet", _digits, 810, 90),
    "3,000 digits of MNIST": ("resnet", _digits, 3000, 300),
    "2 classes of Tiny ImageNet, 30 pictures each": ("resnet", _photographs, 2, 30, 20),
    "3 classes of Tiny ImageNet": ("resnet", _photographs, 3, 15, 5),
    "10 classes of Tiny ImageNet": ("resnet", _photographs, 10, 40, 8),
    "20 classes of Tiny ImageNet": ("resnet", _photographs, 20, 100, 20),
    "2 classes of Tiny ImageNet": ("resnet", _photographs, 2, 400, 50),
    "4 directions of stripes": ("resnet", _stripes, 120, 60),
    "2 classes of UCF101": ("tsm_kinetics", _clips, 2, 20, 10),
    "3 classes of UCF101": ("tsm_kinetics", _clips, 3, 6, 4),
    "5 classes of UCF101": ("tsm_kinetics", _clips, 5, 30, 10),
    "10 classes of UCF101": ("tsm_kinetics", _clips, 10, 30, 10),
    "80 photographs of COCO": ("ssd", _annotated, *_COCO, 80, 40),
    "60 pictures of nuclei": ("ssd", _annotated, *_NUCLEI, 60, 20),
    "271 pictures of nuclei": ("ssd", _annotated, *_NUCLEI, 271, 63),
    "100 pictures of figures": ("ssd", _figures, 100, 40),
    "400 pictures of figures": ("ssd", _figures, 400, 80),
    "60 pictures of nuclei, masks": ("maskrcnn", _annotated, *_NUCLEI, 60, 20),
    "100 pictures of figures, masks": ("maskrcnn", _figures, 100, 40),
    "500 pairs of Multi30k": ("transformer", _sentences, 500),
    "5,000 pairs of Multi30k": ("transformer", _sentences, 5000),
    "500 pairs of Multi30k, recurrent": ("gnmt", _sentences, 500),
    "5,000 pairs of Multi30k, recurrent": ("gnmt", _sentences, 5000),
}


def _thumbnail(path: Path) -> np.ndarray:
    file = path
    if path.suffix in (".mp4", ".avi"):
        frames = videos.read(path).frames
        file = io.BytesIO(frames[len(frames) // 2])
    return np.asarray(Image.open(file).convert("RGB").resize((_SIDE, _SIDE)), np.float32) / 255


def _examples(folder: Path, part: str) -> tuple[np.ndarray, list[str]]:
    """Returns thumbnails [N, side, side, 3] and classes of pictures in folders, or of clips.csv."""
    if (folder / "clips.csv").is_file():
        lines = (folder / "clips.csv").read_text(encoding="utf-8").splitlines()
        rows = [row for row in csv.DictReader(lines) if (row["split"] == "train") == (part == "train")]
        paths, labels = [folder / row["path"] for row in rows], [row["label"] for row in rows]
    else:
        paths = sorted((folder / part).rglob("*.*"))
        labels = [path.parent.name for path in paths]
    return np.stack(list(map(_thumbnail, paths))), labels


def _neighbors(x: np.ndarray, y: np.ndarray, held_out: np.ndarray, classes: int) -> np.ndarray:
    flat, queries = x.reshape(len(x), -1), held_out.reshape(len(held_out), -1)
    distances = (queries**2).sum(1)[:, None] - 2 * queries @ flat.T + (flat**2).sum(1)
    votes = y[np.argsort(distances, axis=1, kind="stable")[:, :_NEIGHBORS]]
    return np.array([np.bincount(row, minlength=classes).argmax() for row in votes])


def _network(
    x: np.ndarray, y: np.ndarray, held_out: np.ndarray, right: np.ndarray, seconds: float, evaluations: int
) -> float:
    """Trains a network of Keras for `seconds`; returns the best accuracy of `evaluations`, as often as ours has."""
    import keras

    keras.utils.set_random_seed(0)
    layers = [keras.Input(x.shape[1:]), keras.layers.RandomTranslation(0.1, 0.1)]
    for width in (32, 64, 128):
        layers += [
            keras.layers.Conv2D(width, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
        ]
    layers += [keras.layers.Flatten(), keras.layers.Dropout(0.5), keras.layers.Dense(int(y.max()) + 1)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    best, began = 0.0, time.monotonic()
    for part in range(1, evaluations + 1):
        while time.monotonic() < began + seconds * part / evaluations:
            model.fit(x, y, _BATCH, epochs=1, verbose=0)
        best = max(best, model.evaluate(held_out, right, verbose=0)[1])
    return best


def peer(folder: Path, seconds: float, evaluations: int) -> dict[str, Any]:
    """Returns the better of two small peers on files of classes: {"value": accuracy, "what": the peer}.

    Args:
      folder: the files.
      seconds: how long the network of Keras trains.
      evaluations: how often it is evaluated meanwhile; the best counts.
    """
    (x, labels), (held_out, expected) = (_examples(folder, part) for part in ("train", "val"))
    classes = sorted(set(labels))
    y, right = (np.array([classes.index(label) for label in part]) for part in (labels, expected))
    answers = {
        f"{_NEIGHBORS} nearest neighbors of thumbnails": (
            _neighbors(x, y, held_out, len(classes)) == right
        ).mean(),
        "a small network of Keras": _network(x, y, held_out, right, seconds, evaluations),
    }
    what = max(answers, key=answers.get)
    return {"value": round(float(answers[what]), 4), "what": what}


def timetotrain(*words: str | Path) -> float:
    """Runs a command and returns its seconds.

    Raises UserError if the command failed; the message has the end of its output.
    """
    line = [sys.executable, "-m", "timetotrain", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    began = time.monotonic()
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
    )
    if done.returncode:
        raise UserError(f"{' '.join(line)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return time.monotonic() - began


def find(value: Any, name: str) -> Any:
    """Returns the first entry `name` of nested dictionaries, or None."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    return next((entry for part in value.values() if (entry := find(part, name)) is not None), None)


def measure(name: str, folder: Path, minutes: float) -> dict[str, Any]:
    """Returns a set's row. Raises UserError if the data are missing, or a command failed."""
    benchmark, make, *sizes = SETS[name]
    files, records, results = (folder / part for part in ("files", "rec", "res"))
    files.mkdir()
    timetotrain("data", benchmark, *make(*sizes, files), records)
    flags = ["--system=here", f"--data_dir={records}", f"--result_dir={results}"]
    start = time.monotonic()
    run = subprocess.Popen([sys.executable, "-m", "timetotrain", "run", benchmark, *flags], cwd=ROOT)
    try:
        run.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        run.terminate()
        run.wait(GRACE_SECONDS)
    seconds = time.monotonic() - start
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
        "seconds": round(seconds),
        "peer": peer(files, seconds, len(evaluations)) if benchmark in ("resnet", "tsm_kinetics") else None,
        "outlook": str(find(ran, "outlook")).partition(" beat")[0],
        **head("keras"),
    }


@answering()
def main() -> int:
    parser = scripts.parser(__doc__, OUTPUT)
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS), help="default: all")
    parser.add_argument("--minutes", type=float, default=5, help="a run is stopped after these; default: 5")
    options = parser.parse_args()
    failures = 0
    for name in options.sets:
        try:
            with tempfile.TemporaryDirectory(prefix="timetotrain-small-") as folder:
                row = measure(name, Path(folder), options.minutes)
        except UserError as error:  # The other sets are measured all the same.
            print(f"error: {error}", file=sys.stderr, flush=True)
            failures += 1
            continue
        print(json.dumps(row), flush=True)
        before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.is_file() else {}
        rows = {one["set"]: one for one in before.get("sets", ())} | {name: row}
        write({**head("keras"), "sets": [rows[one] for one in SETS if one in rows]}, options.output)
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main())
