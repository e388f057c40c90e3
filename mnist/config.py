"""Defines the configuration of the MNIST networks and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar

from common.config.quality import Measure
from common.config.ranges import at_least, fraction, one_of
from common.config.schema import RunConfig
from common.errors import UserError

MODELS = ("lstm", "mlp", "cnn")
ACTIVATIONS = ("sigmoid", "tanh", "relu")


@dataclasses.dataclass(frozen=True)
class Data:
    """Settings of image reading.

    Attributes:
      held_out: number of images at the end of the training set to evaluate on instead of training on, for choosing
        hyperparameters without the test set; 0 evaluates on the test set.
      pixel_scale, pixel_offset: the network sees scale * value + offset for gray values 0..255.
    """

    held_out: int = 0
    pixel_scale: float = 1 / 255
    pixel_offset: float = 0.0


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """All settings of a run on handwritten digits.

    Attributes:
      model: "lstm" (LEGW 5.1.1), "mlp" (MagmaDNN 3.1) or "cnn" (MagmaDNN's example cnn_2d).
      image_size: side of the square images, in pixels; also the number of steps of "lstm".
      num_classes: outputs of the network; labels are 0 .. num_classes - 1.
      lstm_units: width of the LSTM and of the linear transform before it.
      hidden_layers, hidden_units, activation: number, width and activation of the hidden layers of "mlp".
      dropout: dropout rate of each hidden layer's outputs in "mlp".
    """

    benchmark: str = "mnist"
    model: str = "lstm"
    precision: str = "fp32"
    num_train_examples: int = 60000
    num_eval_examples: int = 10000
    global_batch_size: int = 128
    eval_batch_size: int = 1000
    train_epochs: float = 25.0
    quality_target: float | None = 0.985
    image_size: int = 28
    num_classes: int = 10
    lstm_units: int = 128
    hidden_layers: int = 4
    hidden_units: int = 528
    activation: str = "sigmoid"
    dropout: float = 0.0
    data: Data = Data()

    partitions: ClassVar[int] = 1  # Only networks of images have parts.
    schedules: ClassVar[tuple[str, ...]] = ("poly",)
    quality: ClassVar[Measure] = Measure("top-1 accuracy", unit="%")

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        one_of(self, "model", MODELS)
        one_of(self, "activation", ACTIVATIONS)
        at_least(self, 1, "image_size", "num_classes", "lstm_units", "hidden_layers", "hidden_units")
        at_least(self, 0, "data.held_out")
        fraction(self, "dropout")
        if self.model == "cnn" and self.image_size < 6:
            raise UserError(
                f"config.image_size={self.image_size}: config.model=cnn needs at least 6, a window of 5 and one of 2"
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
