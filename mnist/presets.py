"""Defines the presets of the MNIST benchmark, and the hyperparameters for its log header. TensorFlow-free.

LEGW = "Large-Batch Training for LSTM and Beyond"; MagmaDNN = "MagmaDNN: Accelerated Deep Learning Using MAGMA".
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from common.config.choices import Rule
from common.config.optimizer import Sgd
from common.config.presets import legw_family, momentum_key, solver_keys, with_names, without_metadata
from common.config.schedule import Constant
from mnist.config import Config, Data


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """Lists the hyperparameters for the log header: [(key, value, metadata)], read from `config`."""
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model": config.model,
        "train_epochs": config.train_epochs,
        **solver_keys(config),
        "opt_weight_decay": config.optimizer.weight_decay,
        **momentum_key(config),
    }
    if config.model == "mlp":
        pairs |= {
            "hidden_layers": config.hidden_layers,
            "hidden_units": config.hidden_units,
            "activation": config.activation,
            "dropout": config.dropout,
        }
    return without_metadata(pairs)


# LEGW, section 5.1.1: momentum 0.9, constant rate, 25 epochs, base batch 128. The paper gives neither the base rate nor
# the base warmup; docs/presets.md explains our choice. Momentum is TensorFlow's, v = m v + g.
_LEGW = Config(
    global_batch_size=128,
    train_epochs=25.0,
    optimizer=Sgd(base_learning_rate=0.04, momentum=0.9, scaled_momentum=True),
    schedule=Constant(warmup_epochs=0.05),
)

# MagmaDNN, section 3.1; pixels are scaled by v / 128 - 1 as in its example programs.
_MAGMADNN = Config(
    division="open",
    schedule=Constant(warmup_epochs=0.0),
    data=Data(pixel_scale=1 / 128, pixel_offset=-1.0),
)

PRESETS: dict[str, Config] = with_names(
    {
        # A minute on a laptop: the generated digits of mnist/tiny.py.
        "cpu-tiny": Config(
            source="this repository: tuned for two CPU cores on the set that mnist/tiny.py generates",
            division="open",
            smoke_run=True,
            num_train_examples=4000,
            num_eval_examples=1037,
            global_batch_size=64,
            eval_batch_size=128,
            train_epochs=20.0,
            lstm_units=64,
            optimizer=Sgd(base_learning_rate=0.05, momentum=0.9, scaled_momentum=True),
            schedule=Constant(warmup_epochs=0.5),
        ),
        # Presets "cpu-128" to "cpu-8192".
        **legw_family(
            _LEGW,
            name="cpu-{batch}",
            source="LEGW 5.1.1, batch 128 x {factor}; base rate and warmup are ours",
            doublings=6,
        ),
        "cpu-mlp": replace(
            _MAGMADNN,
            source="MagmaDNN 3.1: layers of 528, sigmoid, rate 0.05, weight decay 0.001, batch 100, 5 epochs; the "
            "paper reports times only, the target is ours",
            model="mlp",
            global_batch_size=100,
            train_epochs=5.0,
            quality_target=0.9,
            hidden_layers=1,
            optimizer=Sgd(base_learning_rate=0.05, momentum=0.0, weight_decay=0.001, scaled_momentum=True),
        ),
        "cpu-cnn": replace(
            _MAGMADNN,
            source="MagmaDNN/magmadnn examples/cnn_2d.cpp: batch 128, 20 epochs, rate 0.05; the target is ours",
            model="cnn",
            global_batch_size=128,
            train_epochs=20.0,
            optimizer=Sgd(base_learning_rate=0.05, momentum=0.0, scaled_momentum=True),
        ),
    }
)


def _example_bytes(config: Config, units: float = 38, pixels: float = 59, classes: float = 6) -> float:
    """Estimates the memory per image, in bytes (measured with cpu-128; the LSTM reads a row a step)."""
    size = config.image_size
    return units * size * max(config.lstm_units, 128) + pixels * size**2 + classes * config.num_classes


def _eval_bytes(config: Config) -> float:
    return _example_bytes(config, units=16, pixels=14, classes=4)


def _counts(config: Config, folder: Path) -> dict[str, int]:
    """Reads numbers, size and classes from the files; the test set is not read if a part is held out."""
    from mnist import idx  # Presets need no numpy.

    return idx.counts(folder, config.data.held_out)


HERE = Rule(
    preset="cpu-128", example_bytes=_example_bytes, eval_bytes=_eval_bytes, gpu_batch=1024, counts=_counts
)
