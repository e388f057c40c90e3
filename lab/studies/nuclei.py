"""Trains Mask R-CNN and SSD (quarter width) from scratch on microscope images, nuclei of the 2018 Data Science Bowl.

The settings of the presets cpu-nuclei were chosen with `--tune`, which trains on four fifths of the training images and
evaluates on the last fifth. Only runs without `--tune` use the validation images.
"""

import argparse
import dataclasses
import importlib
import json
import os
import pathlib
from collections.abc import Mapping

import numpy as np

from common import files
from common.config import overrides as configs
from common.errors import UserError
from lab.studies.data import ROOT, unpack
from lab.studies.runner import Runner, Study, add_flags, evaluated, settings
from timetotrain import figures

ARCHIVE = "dsb2018_256"
FOLDER = ROOT / "lab/studies" / "nuclei"
BENCHMARKS = ("maskrcnn", "ssd")
SYSTEM = "cpu-nuclei"
HELD_OUT = 5  # With `--tune`, every fifth training image is held out.
GOAL = 0.6  # AP50 of boxes and of masks.
SHOWN = 0.5  # Minimum score of the detections in the picture.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of `python -m lab.studies nuclei`."""
    parser.add_argument("--benchmark", choices=BENCHMARKS, help="only this one")
    add_flags(parser, "--tune", "overrides")


def run(args: argparse.Namespace) -> int:
    """Converts the images, trains the missing networks, prints their table, writes curves and the picture."""
    source = unpack(ARCHIVE)
    part = "tune" if args.tune else "all"
    data_dir = source.parent / f"{ARCHIVE}-records-{part}"
    counts = convert(source, data_dir, args.tune)
    examples = {f"num_{name}_examples": n for name, n in counts.items()}
    runners = [
        Runner(
            Study(
                name=f"nuclei-{part}",
                benchmark=benchmark,
                preset=SYSTEM,
                data=lambda: data_dir,
                flags=settings(**examples),
                checkpoints=1,
            ),
            overrides=args.overrides,
        )
        for benchmark in ([args.benchmark] if args.benchmark else BENCHMARKS)
    ]
    rows = [runner.named(runner.study.benchmark) for runner in runners]
    for runner, row in zip(runners, rows):
        runner.record(row)  # Refuses a wrong setting before the first network trains.
    lines = []
    for runner, row in zip(runners, rows):
        runner.run_all([row])
        log = runner.log(row)
        network = runner.study.benchmark
        lines.append((network, *figures_of(log)))
        curve = log.with_name("curve_0.png")
        if not args.tune and curve.is_file():
            files.copy(curve, FOLDER / f"{network}_{curve.name}")
        if not args.tune and network == "maskrcnn":
            draw(data_dir, runner.checkpoints(row), [*runner.extra])
    head = ("network", "box AP50", "mask AP50", "epochs", "minutes")
    print(files.markdown_table(head, lines))
    return int(any(float(ap) < GOAL for _, boxes, masks, *_ in lines for ap in (boxes, masks) if ap))


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


def figures_of(log: pathlib.Path) -> tuple[str, str, str, str]:
    """Returns box AP50, mask AP50 ("" for SSD), epochs and minutes of a run.

    Raises:
      UserError: the run has no evaluation, because it diverged.
    """
    from compliance.log.logs import Record, read_log

    records = {r.key: r for r in read_log(log) if isinstance(r, Record)}  # The last one of each key.
    if "eval_accuracy" not in records:
        raise UserError(f"{log}: no evaluation; lower the learning rate", 1)
    last = records["eval_accuracy"].metadata
    minutes = (records["run_stop"].time_ms - records["run_start"].time_ms) / 60000
    boxes, masks = last.get("BBOX_AP50", last.get("AP50")), last.get("SEGM_AP50")
    shown = "" if masks is None else f"{masks:.4f}"
    return f"{boxes:.4f}", shown, str(last["epoch_num"]), f"{minutes:.1f}"


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
