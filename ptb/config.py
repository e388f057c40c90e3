"""Defines the configuration of the PTB language model and checks its fields. TensorFlow-free."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from common.config.closed_fields import later_field, rule_field, system_field
from common.config.quality import Measure
from common.config.ranges import at_least, fraction, one_of, positive
from common.config.schema import RunConfig
from common.errors import UserError

SPLITS = ("test", "valid")


@dataclasses.dataclass(frozen=True)
class Data:
    """Files of the text.

    Attributes:
      eval_split: the evaluated text: "test", or "valid" for choosing hyperparameters.
      train_file, valid_file, test_file: text files inside the data folder; words between blanks, one sentence per line.
    """

    eval_split: str = "test"
    train_file: str = "ptb.train.txt"
    valid_file: str = "ptb.valid.txt"
    test_file: str = "ptb.test.txt"


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """All settings of a run of the language model.

    The text is cut into `global_batch_size` streams of equal length, which are read side by side, `num_steps` words a
    step. The LSTM's state is carried from step to step of a stream and starts anew in each epoch.

    Attributes:
      num_train_examples, num_eval_examples: words (with an <eos> for every line) of the two texts, as logged.
      global_batch_size, eval_batch_size: number of streams.
      vocabulary_size: different words of the training text; outputs of the network.
      units, layers: width and number of the LSTMs; `units` is also the width of the embedding.
      num_steps: words of a stream in a step, over which gradients flow.
      init_scale: embedding, kernels and output start uniform in +-init_scale, LSTM biases at 0.
      forget_bias: where the bias of the forget gates starts instead; 1 is the default of TensorFlow's cells.
      dropout: dropout rate on the embedding and on the output of each LSTM, as in Zaremba et al.; 0 is "small".
      hoisted: compute the input projection of the LSTM before the loop, see common/layers/lstm.py; the results are
        equal.
      carry: False starts every step from a zero state: a deliberate fault, for tests.
    """

    benchmark: str = "ptb"
    model: str = "lstm"
    precision: str = "fp32"
    num_train_examples: int = 929589
    num_eval_examples: int = 82430
    global_batch_size: int = 20
    eval_batch_size: int = 20
    train_epochs: float = 13.0
    steps_per_epoch_rounding: str = "floor"
    quality_target: float | None = 116.5
    vocabulary_size: int = rule_field(10000)
    units: int = 200
    layers: int = 2
    num_steps: int = 20
    init_scale: float = 0.1
    forget_bias: float = later_field(0.0, closed="fixed")
    dropout: float = later_field(0.0, closed="fixed")
    hoisted: bool = system_field(True)
    carry: bool = True
    data: Data = Data()

    quality: ClassVar[Measure] = Measure("perplexity", lower_is_better=True)

    @property
    def train_steps_per_epoch(self) -> int:
        """Steps of an epoch: the last word of a stream has no successor to predict, a rest below a step is left out."""
        return (self.num_train_examples // self.global_batch_size - 1) // self.num_steps

    @property
    def eval_words_per_stream(self) -> int:
        """Words that a stream predicts in an evaluation, rounded up: every word but the first is predicted once."""
        return -(-(self.num_eval_examples - 1) // self.eval_batch_size)

    @property
    def examples_per_epoch(self) -> int:
        """Number of sequences of `num_steps` words in an epoch."""
        return self.train_steps_per_epoch * self.global_batch_size

    @property
    def examples_per_evaluation(self) -> int:
        """Number of sequences in an evaluation; the last of each stream is padded."""
        return -(-self.eval_words_per_stream // self.num_steps) * self.eval_batch_size

    def validate_own_fields(self) -> None:
        """Raises UserError where a field is out of range or fields contradict each other."""
        if self.partitions > 1:
            raise UserError(f"config.partitions={self.partitions}: ptb has no images to partition; use 1")
        one_of(self, "model", ("lstm",))
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
