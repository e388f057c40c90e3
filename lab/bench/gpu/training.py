"""Whole runs on the card, if TensorFlow is installed: to a target, and ResNet-50's loop fed with JPEG records."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lab.bench.gpu.child import Turn
from lab.bench.harness import ROOT

# Pictures like an average ImageNet picture: 500 x 375 and 110 KB (image-net.org, ILSVRC 2012).
_WIDTH, _HEIGHT, _QUALITY = 500, 375, 92
_DISTINCT, _SHARDS, _VALIDATION = 256, 16, 512
# The first block fills the input's caches, the next one counts.
_BLOCKS = 2


def train(job: dict, turn: Turn) -> dict[str, Any]:
    """Trains a tiny preset through pjrt to its target, beside others; returns accuracies and seconds."""
    name, folder = job["benchmark"], Path(job["scratch"]) / "train" / job["row"]
    made = subprocess.run(
        [sys.executable, "-m", f"{name}.tiny", str(folder / "data")], cwd=ROOT, capture_output=True, text=True
    )
    if made.returncode:
        sys.exit(f"error: {name}.tiny: {(made.stderr.strip().splitlines() or ['no message'])[-1]}")
    flags = ["--system=cpu-tiny", f"--data_dir={folder / 'data'}", *job["arguments"]]
    with turn.together():
        log, seconds = _run(name, flags, folder / "results")
    accuracies = [e["value"] for e in log if e["key"] == "eval_accuracy"]
    stop = [e["metadata"].get("status") for e in log if e["key"] == "run_stop"]
    return {
        "status": stop[-1] if stop else "none",
        "accuracies": accuracies,
        "clock_seconds": (_time(log, "run_stop") - _time(log, "run_start")) / 1000,
        "start_seconds": (_time(log, "run_start") - _time(log, "init_start")) / 1000,
        "all_seconds": seconds,
    }


def loop(job: dict, turn: Turn) -> dict[str, Any]:
    """Trains full-size ResNet-50 on JPEG records, its own or generated ones; returns rates and startup time."""
    folder, batch = Path(job["scratch"]) / "loop", job["batch"]
    data, count = Path(job.get("data", folder / "data")), job["images"]
    if "data" not in job:
        write_records(data, count)
    # This run is not a result. Without --cache_cleared, which the rules require, there would be no log.
    flags = ["--target=none", "--config.smoke_run=true", "--cache_cleared", *job["arguments"]]
    flags += [
        *(f"--data_dir={data}", f"--config.num_train_examples={count}"),
        *(
            f"--config.num_eval_examples={min(count, _VALIDATION)}",
            f"--config.steps_per_block={job['steps']}",
        ),
        f"--config.train_steps={_BLOCKS * job['steps']}",
    ]
    with turn.alone():
        log, seconds = _run("resnet", flags, folder / "results")
    began = [e["time_ms"] for e in log if e["key"] == "block_start"]
    trained = [e["time_ms"] for e in log if e["key"] == "eval_start"]
    rates = [job["steps"] * batch / (end - start) * 1000 for start, end in zip(began, trained)]
    first = _time(log, "init_start")
    return {
        "images_per_second": rates[-1],
        "images_per_second_of_blocks": rates,
        "images_per_second_of_run": _BLOCKS
        * job["steps"]
        * batch
        / (_time(log, "run_stop") - began[0])
        * 1000,
        "ms": 1000 * batch / rates[-1],
        "batch": batch,
        "start_seconds": (began[0] - first) / 1000,
        "all_seconds": seconds,
        "cache": job.get("cache_of_input"),
    }


def _run(name: str, flags: list[str], results: Path) -> tuple[list[dict], float]:
    """Returns the events in a training run's log, and the seconds that its process took."""
    results.mkdir(parents=True, exist_ok=True)
    began, before = time.monotonic(), set(results.rglob("result_*.txt"))
    command = [sys.executable, "-m", name, *flags, "--replicas=pjrt", f"--result_dir={results}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    log = [event for path in set(results.rglob("result_*.txt")) - before for event in _events(path)]
    if not any(event["key"] == "run_stop" for event in log):
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        sys.exit(f"error: {name}: exit status {done.returncode}: {lines[-1]}")
    return log, seconds


def _events(path: Path) -> Iterator[dict]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(":::MLLOG"):
            yield json.loads(line.removeprefix(":::MLLOG"))


def _time(log: list[dict], key: str) -> int:
    return next((event["time_ms"] for event in log if event["key"] == key), 0)


def picture(number: int) -> bytes:
    """Makes a JPEG of smooth colors under a texture, with the size of ImageNet's pictures and about as many bytes."""
    from PIL import Image

    random = np.random.default_rng(number)

    def layer(rows: int, columns: int, height: float) -> np.ndarray:
        small = Image.fromarray(random.integers(0, 256, [rows, columns, 3], np.uint8))
        return height * (np.asarray(small.resize((_WIDTH, _HEIGHT), Image.BICUBIC), np.float32) - 128)

    pixels = 128 + layer(6, 8, 0.6) + layer(45, 60, 0.3) + layer(_HEIGHT // 2, _WIDTH // 2, 0.25)
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()


def write_records(folder: Path, images: int) -> int:
    """Writes `images` pictures, `_DISTINCT` of them different, as TFRecords in ImageNet's layout, unless they exist."""
    from common.data import tfrecords

    done = folder / "written"
    if done.exists() and int(done.read_text()) == images:
        return images
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [picture(i) for i in range(min(images, _DISTINCT))]
    records = [
        tfrecords.example({"image/encoded": jpeg, "image/class/label": 1 + i % 1000})
        for i, jpeg in enumerate(drawn)
    ]
    for split, count in (("train", images), ("validation", min(images, _VALIDATION))):
        for shard in range(_SHARDS):
            mine = [records[i % len(records)] for i in range(shard, count, _SHARDS)]
            tfrecords.write(folder / tfrecords.shard_name(split, shard, _SHARDS), mine)
    done.write_text(str(images))
    return images
