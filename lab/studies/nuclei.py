"""Trains Mask R-CNN and SSD (quarter width) from scratch on microscope images, nuclei of the 2018 Data Science Bowl.

The settings of the presets cpu-nuclei were chosen with `--tune`, which trains on four fifths of the training images and
evaluates on the last fifth. Only runs without `--tune` use the validation images.

The same command resumes a killed study: finished benchmarks stay, the others resume from their last checkpoint.
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from common import files
from common.config import overrides as configs
from common.config.digest import digest
from common.errors import UserError
from lab.studies.data import ROOT, unpack
from lab.studies.runner import add_flags, evaluated, move_aside, run_and_time, write_rows
from timetotrain import figures
from timetotrain.run.outcome import is_whole

ARCHIVE = "dsb2018_256"
FOLDER = ROOT / "lab/studies" / "nuclei"
BENCHMARKS = ("maskrcnn", "ssd")
SYSTEM = "cpu-nuclei"
HELD_OUT = 5  # With `--tune`, every fifth training image is held out.
WANTED = 0.6  # Target AP50 of boxes and of masks.
SHOWN = 0.5  # Minimum score of the detections in the picture.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies nuclei`."""
    parser.add_argument("--benchmark", choices=BENCHMARKS, help="only this one")
    add_flags(parser, "--tune", "overrides")


def run(args: argparse.Namespace) -> int:
    """Converts the images, runs both benchmarks' run_and_time.sh, writes the table, curves and the picture."""
    source = unpack(ARCHIVE)
    part = "tune" if args.tune else "all"
    data_dir = source.parent / f"{ARCHIVE}-records-{part}"
    counts = convert(source, data_dir, args.tune)
    overrides = [f"--config.num_{name}_examples={n}" for name, n in counts.items()] + args.overrides
    # Check all settings before training a benchmark or moving its earlier results.
    asked = {name: _asked(name, overrides) for name in ([args.benchmark] if args.benchmark else BENCHMARKS)}
    rows, results = [], ROOT / "results" / f"study-nuclei-{part}"
    for benchmark in asked:
        if prepare(results / SYSTEM / benchmark, asked[benchmark]):
            _run(benchmark, data_dir, results, overrides)
        rows.append(_row(benchmark, results / SYSTEM / benchmark))
        print(json.dumps(rows[-1]), flush=True)
        if not args.tune:
            _publish(benchmark, results / SYSTEM / benchmark)
            if benchmark == "maskrcnn":
                draw(data_dir, results / SYSTEM / benchmark / "checkpoints", overrides)
    if not args.tune and len(rows) == len(BENCHMARKS):
        write_rows(FOLDER, rows)
    return 0 if all(row["reached"] for row in rows) else 1


def convert(source: pathlib.Path, data_dir: pathlib.Path, tune: bool) -> dict[str, int]:
    """Converts the archive's images to TFRecords with masks; returns the numbers of "train" and "eval" images.

    With `tune` it evaluates on every fifth training image, and the validation images stay unseen.
    """
    train, held_out = (
        json.loads((source / f"instances_{name}.json").read_text()) for name in ("train", "val")
    )
    if tune:
        images = train["images"]
        held_out = {**train, "images": images[::HELD_OUT]}
        train = {**train, "images": [image for i, image in enumerate(images) if i % HELD_OUT]}
    data_dir.mkdir(parents=True, exist_ok=True)
    arguments = [str(data_dir), "--masks", "--workers=1", "--train-shards=4", "--val-shards=2"]
    for split, content in (("train", train), ("val", held_out)):
        kept = {image["id"] for image in content["images"]}
        content = {**content, "annotations": [a for a in content["annotations"] if a["image_id"] in kept]}
        path = data_dir / f"{split}.json"
        path.write_text(json.dumps(content))
        arguments += [f"--{split}={source}", f"--{split}-annotations={path}"]
    from common.detection import convert as converter

    status = converter.main(arguments)
    if status:
        raise UserError(f"converting {source} failed; see above", status)
    return {"train": len(train["images"]), "eval": len(held_out["images"])}


def _asked(benchmark: str, overrides: list[str]) -> dict[str, Any]:
    """Returns the settings that identify a run: the current preset and the flags.

    Raises:
      UserError: the configuration is invalid; earlier results stay.
    """
    preset = importlib.import_module(f"{benchmark}.presets").PRESETS[SYSTEM]
    configs.override_all(preset, overrides).validate()
    return {"preset": digest(preset), "flags": overrides}


def prepare(folder: pathlib.Path, asked: dict[str, Any]) -> bool:
    """Prepares a benchmark's folder; returns whether the benchmark still needs training.

    A finished run stays. An interrupted run keeps its checkpoints, so that it can resume, and its log is renamed.
    Results with other settings move aside and replace results that moved aside earlier.

    Args:
      folder: the folder of the benchmark's results.
      asked: the settings, kept in asked.json.
    """
    path, log = folder / "asked.json", folder / "result_0.txt"
    try:
        same = json.loads(path.read_text()) == asked
    except (OSError, ValueError):
        same = False
    if same and is_whole(log):
        print(f"{log}: finished; delete it to train again", flush=True)
        return False
    if not same:
        if moved := move_aside(folder):
            print(f"{folder}: of other settings, moved to {moved}", flush=True)
        folder.mkdir(parents=True)
        path.write_text(json.dumps(asked))
    elif log.exists():
        number = len(list(folder.glob("interrupted_*.txt")))
        log.rename(folder / f"interrupted_{number}.txt")
    return True


def _run(benchmark: str, data_dir: pathlib.Path, results: pathlib.Path, overrides: list[str]) -> None:
    checkpoints = f"--checkpoint_dir={results / SYSTEM / benchmark / 'checkpoints'}"
    run_and_time(benchmark, SYSTEM, data_dir, results, [checkpoints, *overrides])


def _row(benchmark: str, results: pathlib.Path) -> dict[str, Any]:
    from compliance.log.logs import Record, read_log

    records = [r for r in read_log(results / "result_0.txt") if isinstance(r, Record)]
    evaluations = [r.metadata for r in records if r.key == "eval_accuracy"]
    if (
        not evaluations
    ):  # The run diverged, or was killed after its last checkpoint and resumed with no steps left.
        raise UserError(f"{results / 'result_0.txt'}: no evaluation; delete {results} to train again", 1)
    last = evaluations[-1]
    times = {r.key: r.time_ms for r in records}
    minutes = round((times["run_stop"] - times["run_start"]) / 60000, 1)
    boxes, masks = last.get("BBOX_AP50", last.get("AP50")), last.get("SEGM_AP50")
    return {
        "benchmark": benchmark,
        "box_AP50": round(boxes, 4),
        "mask_AP50": "" if masks is None else round(masks, 4),
        "reached": boxes >= WANTED and (masks is None or masks >= WANTED),
        "epochs": last["epoch_num"],
        "minutes": "" if "resumed_from_step" in times else minutes,  # A resumed run has no time to train.
    }


def _publish(benchmark: str, results: pathlib.Path) -> None:
    if (results / "curve_0.png").is_file():
        files.copy(results / "curve_0.png", FOLDER / f"{benchmark}_curve_0.png")


def draw(data_dir: pathlib.Path, checkpoints: pathlib.Path, overrides: list[str]) -> pathlib.Path:
    """Draws lab/studies/nuclei/masks.png: four validation images, annotated masks above, predicted masks below."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    arrays = _detections(data_dir, checkpoints, overrides)
    content = json.loads((data_dir / "val.json").read_text())
    chosen = content["images"][:: max(1, len(content["images"]) // 4)][:4]
    figure, axes = pyplot.subplots(2, len(chosen), figsize=(3 * len(chosen), 6), dpi=100)
    for column, image in enumerate(chosen):
        pixels = pyplot.imread(unpack(ARCHIVE) / image["file_name"])[..., :3]
        for row, masks in enumerate((_annotated(content, image), _predicted(arrays, image))):
            axes[row, column].imshow(_painted(pixels, masks))
            axes[row, column].set_axis_off()
            axes[row, column].set_title(f"{masks.shape[-1]} {('annotated', 'predicted')[row]}", fontsize=9)
    figure.tight_layout()
    path = FOLDER / "masks.png"
    figures.write(path, figure)
    return path


def _detections(
    data_dir: pathlib.Path, checkpoints: pathlib.Path, overrides: list[str]
) -> Mapping[str, np.ndarray]:
    """Returns the arrays of an evaluation with the newest checkpoint's weights."""
    preset = importlib.import_module("maskrcnn.presets").PRESETS[SYSTEM]
    config = dataclasses.replace(configs.override_all(preset, overrides), replicas="single")
    return evaluated(importlib.import_module("maskrcnn.task").Task(config, str(data_dir)), checkpoints)


def _annotated(content: dict, image: dict) -> np.ndarray:
    from common.detection import masks

    shapes = [a["segmentation"] for a in content["annotations"] if a["image_id"] == image["id"]]
    return np.stack([masks.decode(shape, image["height"], image["width"]) for shape in shapes], -1)


def _predicted(arrays: Mapping[str, np.ndarray], image: dict) -> np.ndarray:
    from common.detection import masks

    row = arrays["image_id"].tolist().index(image["id"])
    found = arrays["scores"][row] > SHOWN
    boxes = arrays["boxes"][row][found] * ([image["height"], image["width"]] * 2)
    return masks.paste(arrays["masks"][row][found], boxes, image["height"], image["width"])


def _painted(pixels: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Paints each mask over the image in its own color."""
    colours = np.random.default_rng(1).uniform(0.2, 1, [masks.shape[-1], 3])
    painted = pixels.astype(float).copy()
    for colour, mask in zip(colours, np.moveaxis(masks, -1, 0)):
        painted[mask > 0] = 0.45 * painted[mask > 0] + 0.55 * colour
    return painted
