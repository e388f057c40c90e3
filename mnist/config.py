"""Presets of the handwritten digits benchmark, and what of a configuration is logged. TensorFlow-free.

LEGW = "Large-Batch Training for LSTM and Beyond"; MagmaDNN = "MagmaDNN: Accelerated Deep Learning Using MAGMA".
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from common.config.clock import Clock
from common.config.legw import legw
from common.config.schema import Optimizer, RunConfig, Schedule
from common.errors import UserError

MODELS = ("lstm", "mlp", "cnn")
ACTIVATIONS = ("sigmoid", "tanh", "relu")


@dataclasses.dataclass(frozen=True)
class Data:
    """How the images are read.

    Attributes:
      held_out: evaluate on so many images from the end of the training set, train on the others and leave the
        test set alone: for choosing hyperparameters. 0 evaluates on the test set.
      pixel_scale, pixel_offset: the network sees scale * value + offset of the grey values 0..255.
    """

    held_out: int = 0
    pixel_scale: float = 1 / 255
    pixel_offset: float = 0.0


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """Everything that decides a run on handwritten digits.

    Attributes:
      model: "lstm" (LEGW 5.1.1), "mlp" (MagmaDNN 3.1) or "cnn" (MagmaDNN's example cnn_2d).
      image_size: side of the square images, in pixels; of "lstm" also the number of steps.
      num_classes: outputs of the network; labels are 0 .. num_classes - 1.
      lstm_units: width of the LSTM and of the linear transform in front of it.
      folded: the matrices of the transform and of the LSTM's input are multiplied first, see mnist/model.py;
        the results are equal. Needs `hoisted`.
      hoisted: the form of the LSTM, see common/layers/lstm.py; the results are equal.
      hidden_layers, hidden_units, activation: of "mlp".
      dropout: part of each hidden layer's outputs that "mlp" drops.
      recurrent: False leaves "lstm" the last row of the image only: a deliberate fault, for tests.
    """

    benchmark: str = "mnist"
    model: str = "lstm"
    precision: str = "fp32"
    num_train_examples: int = 60000
    num_eval_examples: int = 10000
    global_batch_size: int = 128
    eval_batch_size: int = 1000
    train_epochs: float = 25.0
    quality_target: float = 0.985
    image_size: int = 28
    num_classes: int = 10
    lstm_units: int = 128
    folded: bool = True
    hoisted: bool = True
    hidden_layers: int = 4
    hidden_units: int = 528
    activation: str = "sigmoid"
    dropout: float = 0.0
    recurrent: bool = True
    data: Data = Data()

    def validate(self) -> None:
        """Raises UserError where fields contradict each other."""
        super().validate()
        if self.partitions > 1:
            raise UserError(
                f"config.partitions={self.partitions}: mnist does not partition its images; use 1"
            )
        for name, known in (("model", MODELS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise UserError(f"config.{name}={getattr(self, name)!r}: unknown; known: {', '.join(known)}")
        for name in ("image_size", "num_classes", "lstm_units", "hidden_layers", "hidden_units"):
            if getattr(self, name) < 1:
                raise UserError(f"config.{name}={getattr(self, name)}: must be at least 1")
        if self.model == "cnn" and self.image_size < 6:
            raise UserError(
                f"config.image_size={self.image_size}: config.model=cnn needs at least 6, a window of 5 and one of 2"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"config.dropout={self.dropout}: must be in [0, 1)")
        if self.folded and not self.hoisted:
            raise UserError(
                "config.folded=True needs config.hoisted=True: the plain loop multiplies inputs and states at once; "
                "set --config.folded=false"
            )
        if self.data.held_out and self.data.held_out != self.num_eval_examples:
            raise UserError(
                f"config.data.held_out={self.data.held_out} images are what is evaluated; set "
                f"--config.num_eval_examples={self.data.held_out} and take them off num_train_examples"
            )
        if self.global_batch_size > self.num_train_examples:
            raise UserError(
                f"config.global_batch_size={self.global_batch_size} is more than the "
                f"{self.num_train_examples} training images (config.num_train_examples)"
            )


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """What the log's header says about the run: [(key, value, metadata)], read from `config`."""
    optimizer, schedule = config.optimizer, config.schedule
    warmup = schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch)
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "model": config.model,
        "train_epochs": config.train_epochs,
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": warmup,
        "opt_learning_rate_schedule": schedule.kind,
        "opt_weight_decay": optimizer.weight_decay,
    }
    if optimizer.has_momentum:
        pairs["opt_momentum"] = optimizer.momentum
    if config.model == "mlp":
        pairs |= {
            "hidden_layers": config.hidden_layers,
            "hidden_units": config.hidden_units,
            "activation": config.activation,
            "dropout": config.dropout,
        }
    return [(key, value, {}) for key, value in pairs.items()]


# LEGW, section 5.1.1: momentum 0.9, constant rate, 25 epochs, base batch 128. The paper does not give the base rate
# and the base warmup: docs/mnist-presets.md says how ours were chosen. Its momentum is TensorFlow's, v = m v + g.
_LSTM = Config(
    optimizer=Optimizer(name="sgd", base_learning_rate=0.04, momentum=0.9, scaled_momentum=True),
    schedule=Schedule(kind="constant", warmup_epochs=0.05),
)
LARGEST_FACTOR = 64
_LEGW_PRESETS = {
    f"cpu-{128 * 2**i}": replace(
        legw(_LSTM, 2**i),
        source=f"LEGW 5.1.1, batch 128 x {2**i}; base rate and warmup are ours",
    )
    for i in range(LARGEST_FACTOR.bit_length())
}

# MagmaDNN, section 3.1; pixels as its example programs scale them, v / 128 - 1.
_MAGMADNN = Config(
    division="open",
    optimizer=Optimizer(name="sgd", base_learning_rate=0.05, momentum=0.0, scaled_momentum=True),
    schedule=Schedule(kind="constant", warmup_epochs=0.0),
    data=Data(pixel_scale=1 / 128, pixel_offset=-1.0),
)
_MAGMADNN_PRESETS = {
    "cpu-mlp": replace(
        _MAGMADNN,
        source="MagmaDNN 3.1: layers of 528, sigmoid, rate 0.05, weight decay 0.001, batch 100, 5 epochs; the paper "
        "reports times only, the target is ours",
        model="mlp",
        global_batch_size=100,
        train_epochs=5.0,
        quality_target=0.9,
        hidden_layers=1,
        optimizer=replace(_MAGMADNN.optimizer, weight_decay=0.001),
    ),
    "cpu-cnn": replace(
        _MAGMADNN,
        source="MagmaDNN/magmadnn examples/cnn_2d.cpp: batch 128, 20 epochs, rate 0.05; the target is ours",
        model="cnn",
        global_batch_size=128,
        train_epochs=20.0,
    ),
}

# --- A laptop, a minute: the generated digits of mnist/tiny.py.
_CPU_TINY = replace(
    _LSTM,
    source="this repository: tuned for two CPU cores on the set that mnist/tiny.py generates",
    division="open",
    smoke_run=True,
    num_train_examples=4000,
    num_eval_examples=1037,
    global_batch_size=64,
    eval_batch_size=128,
    train_epochs=20.0,
    lstm_units=64,
    optimizer=replace(_LSTM.optimizer, base_learning_rate=0.05),
    schedule=replace(_LSTM.schedule, warmup_epochs=0.5),
)

PRESETS: dict[str, Config] = {
    name: replace(config, system=name)
    for name, config in {"cpu-tiny": _CPU_TINY, **_LEGW_PRESETS, **_MAGMADNN_PRESETS}.items()
}
