"""Makes the smallest valid models, a checkpoint and its export, for scripts and tests that damage them."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path


def make(folder: Path) -> tuple[Path, Path]:
    """Returns (a checkpoint, its SavedModel) of a perceptron with 8 units for 8 x 8 pictures."""
    from common.distributed.replicas.single import Single
    from common.export import formats, trained
    from common.layers.precision import precision
    from common.train import checkpoint
    from common.train.step import State
    from mnist.presets import PRESETS
    from mnist.task import Task

    changes = {"model": "mlp", "hidden_layers": 1, "hidden_units": 8, "image_size": 8, "precision": "fp32"}
    config = dataclasses.replace(PRESETS["cpu-tiny"], **changes)
    task = Task(config, None)
    task.labels = lambda: [f"digit {i}" for i in range(config.num_classes)]  # type: ignore[method-assign]
    task.assets = lambda: {"words.txt": b"a\nb\n"}  # type: ignore[method-assign]
    state = State(task, Single(), precision("fp32"))
    run = types.SimpleNamespace(state=state, config=config, task=task)
    saved = checkpoint.save(run, folder / "checkpoints")  # type: ignore[arg-type]
    formats.write(trained.load(saved), folder / "export", "savedmodel")
    return saved, folder / "export"


def picture(path: Path) -> Path:
    """Writes a picture of a digit's size."""
    import numpy as np
    from PIL import Image

    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(path)
    return path


def imported() -> None:
    """Imports the verbs' modules in advance, so that forked processes need not."""
    import tqdm  # noqa: F401

    from common.export import formats, inference, pictures, trained  # noqa: F401
    from mnist import presets, serving, task  # noqa: F401
