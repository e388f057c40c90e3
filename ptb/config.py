"""Defines the configuration of the PTB language model and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar

from common.config.closed_fields import added_field, rule_field
from common.config.quality import Measure
from common.config.ranges import at_least, fraction, one_of, positive
from common.config.schema import RunConfig
from common.errors import UserError

SPLITS = ("test", "valid")


@dataclasses.dataclass(frozen=True)
class Data:
    """Text files.

    Attributes:
      eval_split: text to evaluate on: "test", or "valid" for choosing hyperparameters.
    """

    eval_split: str = "test"

    # Constants of every preset.
    # Text files inside the data folder; words between blanks, one sentence per line.
    train_file: ClassVar[str] = "ptb.train.txt"
    valid_file: ClassVar[str] = "ptb.valid.txt"
    test_file: ClassVar[str] = "ptb.test.txt"


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """All settings of a run of the language model.

    The text is cut into `global_batch_size` streams of equal length. Training reads them in parallel, `num_steps` words
    per step. The LSTM carries its state from step to step within a stream, and resets it in each epoch.

    Attributes:
      num_train_examples, num_eval_examples: logged number of words in each text (with an <eos> for every line).
      global_batch_size, eval_batch_size: number of streams.
      vocabulary_size: number of different words in the training text, and of network outputs.
      units, layers: width and number of the LSTMs; `units` is also the width of the embedding.
      num_steps: words per stream in a step; gradients flow over these words.
      init_scale: embedding, kernels and output start uniform in +-init_scale, LSTM biases at 0.
      forget_bias: initial bias of the forget gates, instead of 0; TensorFlow's cells use 1 by default.
      dropout: dropout rate on the embedding and each LSTM's output, as in Zaremba et al.; 0 is "small".
      carry: False starts every step from a zero state, to which lab/studies/legw_values.py compares.
    """

    benchmark: str = "ptb"
    precision: str = "fp32"
    num_train_examples: int = 929589
    num_eval_examples: int = 82430
    global_batch_size: int = 20
    eval_batch_size: int = 20
    train_epochs: float = 13.0
    quality_target: float | None = 116.5
    vocabulary_size: int = rule_field(10000)
    units: int = 200
    layers: int = 2
    num_steps: int = 20
    init_scale: float = 0.1
    forget_bias: float = added_field(0.0, closed="fixed")
    dropout: float = added_field(0.0, closed="fixed")
    carry: bool = True
    data: Data = Data()

    partitions: ClassVar[int] = 1  # Only networks of images have parts.
    steps_per_epoch_rounding: ClassVar[str] = "floor"
    model: ClassVar[str] = "lstm"
    schedules: ClassVar[tuple[str, ...]] = ("step", "poly")
    quality: ClassVar[Measure] = Measure("perplexity", lower_is_better=True)

    @property
    def train_steps_per_epoch(self) -> int:
        """Returns the full steps per epoch. A stream's last word is not an input, and a partial step is dropped."""
        return (self.num_train_examples // self.global_batch_size - 1) // self.num_steps

    @property
    def eval_words_per_stream(self) -> int:
        """Returns the words each stream predicts in an evaluation, rounded up; every word but the first counts once."""
        return -(-(self.num_eval_examples - 1) // self.eval_batch_size)

    @property
    def examples_per_epoch(self) -> int:
        """Returns the number of sequences of `num_steps` words in an epoch."""
        return self.train_steps_per_epoch * self.global_batch_size

    @property
    def examples_per_evaluation(self) -> int:
        """Returns the number of sequences in an evaluation; padding fills the last sequence of each stream."""
        return -(-self.eval_words_per_stream // self.num_steps) * self.eval_batch_size

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        positive(self, "init_scale")
        at_least(self, 1, "vocabulary_size", "units", "layers", "num_steps")
        fraction(self, "dropout")
        one_of(self, "data.eval_split", SPLITS)
        if self.num_eval_examples < 2:
            raise UserError(
                f"config.num_eval_examples={self.num_eval_examples}: must be at least 2: the first is not predicted"
            )
        if self.train_steps_per_epoch < 1:
            raise UserError(
                f"config.global_batch_size={self.global_batch_size}: {self.num_train_examples} words give streams "
                f"shorter than config.num_steps={self.num_steps}; use fewer streams"
            )
