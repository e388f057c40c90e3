"""Defines the configuration of the Transformer and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar

from common.config.closed_fields import added_field, data_field
from common.config.quality import Measure
from common.config.ranges import at_least, fraction, one_of
from common.config.rules import LATER_OPTIMIZERS
from common.config.schema import RunConfig
from common.errors import UserError

SEARCHES = ("tensor2tensor", "lingvo")
# The converter's note next to the records: its length limits and its counts.
NOTE = "convert.json"


@dataclasses.dataclass(frozen=True)
class Data:
    """Text files from `transformer/convert.py`, and how to read them.

    Attributes:
      eval_source, eval_reference: text files inside the data folder; line i of one translates line i of the other.
      shuffle_buffer: packed sequences in the shuffle buffer, per input shard.
    """

    eval_source: str = "eval.source"
    eval_reference: str = "eval.reference"
    shuffle_buffer: int = 16384

    # Constants of every preset.
    # TFRecord shards of packed pairs inside the data folder.
    train_pattern: ClassVar[str] = "train-*"
    # The subword file inside the data folder.
    vocabulary: ClassVar[str] = "vocab.subwords"


@dataclasses.dataclass(frozen=True)
class Decode:
    """The beam search of an evaluation; defaults: docs/sources.md, mlperf 1.4.

    Attributes:
      source_length: padded length of every source sentence in tokens, including the end of sentence; the longest in
        newstest2014 has 97.
      extra_length: maximum number of tokens by which a translation may exceed `source_length`.
      alpha: exponent of the length penalty: ((5 + length) / 6)^alpha, for Lingvo ((5 + length) / 5)^alpha.
      search: "tensor2tensor", or "lingvo", as Google's TensorFlow rows of round v0.7 (common/text/beam.py).
    """

    source_length: int = 97
    extra_length: int = 50
    alpha: float = 0.6
    search: str = added_field("tensor2tensor")

    # Constant of every preset: number of hypotheses kept.
    beam_size: ClassVar[int] = 4

    @property
    def target_length(self) -> int:
        """Returns the maximum number of search steps."""
        return self.source_length + self.extra_length


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """All settings of a run of the Transformer.

    A training example is a packed sequence: several sentence pairs, end to end, in `packed_length` source tokens and
    `packed_length` target tokens. `global_batch_size` and `num_train_examples` count packed sequences.

    Attributes:
      vocabulary_size: entries in the subword vocabulary that source, target and softmax share.
      packed_length: tokens in a packed sequence.
      max_sequence_length: the converter discarded pairs with a longer side; the run logs this length and checks it
        against the converter's note and every record.
      layers: number of encoder layers, and of decoder layers.
      width: width of the residual stream.
      hidden: width of the feed-forward layers.
      heads: number of heads in each attention.
      residual_dropout: dropout rate after each sublayer and the embeddings.
      attention_dropout: dropout rate on the attention weights.
      relu_dropout: dropout rate after the ReLU.
      mean_of_means: whether the loss is the mean of the replicas' means over their own tokens, as in Google's code (G6
        utils/optimize.py 34, G7 lingvo/core/py_utils.py 2027, JAX train.py 415), not the mean over all tokens.
      dropout_generator: "counter" drops the same elements of an example on every machine; "hardware" uses the device's
        own generator (exports, replicas=pjrt), whose numbers depend on the device and the number of replicas; on a GPU
        attention's numbers depend on the process's steps instead (docs/gpu.md), so a resumed run has others.
      label_smoothing: fraction of the target probability that is spread over the other classes.
    """

    benchmark: str = "transformer"
    num_train_examples: int = data_field(566340)
    num_eval_examples: int = 3003
    quality_target: float | None = 0.25
    vocabulary_size: int = data_field(33708)
    packed_length: int = 256
    max_sequence_length: int = 80
    layers: int = 6
    width: int = 1024
    hidden: int = 4096
    heads: int = 16
    residual_dropout: float = 0.1
    attention_dropout: float = 0.1
    relu_dropout: float = 0.1
    label_smoothing: float = 0.1
    data: Data = Data()
    decode: Decode = Decode()
    dropout_generator: str = added_field("counter", closed="free")
    mean_of_means: bool = added_field(False)

    partitions: ClassVar[int] = 1  # Only networks of images have parts.
    model: ClassVar[str] = "transformer_big"
    schedules: ClassVar[tuple[str, ...]] = ("noam", "cosine")
    quality: ClassVar[Measure] = Measure("BLEU", unit="points")

    @property
    def serving_length(self) -> int:
        """Maximum tokens of a sentence to translate outside a run: the longest in training or evaluation."""
        decode = self.decode
        # Positions that have a signal.
        room = max(self.packed_length, decode.target_length) - decode.extra_length
        return min(max(decode.source_length, self.max_sequence_length), room)

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        at_least(self, 1, "vocabulary_size", "packed_length", "layers", "width", "hidden", "heads")
        if self.width % (2 * self.heads):
            raise UserError(
                f"config.width={self.width} does not divide into {self.heads} heads of an even width; "
                f"use a multiple of {2 * self.heads}"
            )
        fraction(self, "residual_dropout", "attention_dropout", "relu_dropout", "label_smoothing")
        one_of(self, "dropout_generator", ("counter", "hardware"))
        if not self.optimizer.is_plugin:
            one_of(self, "optimizer.name", ("adam", "lazy_adam", *LATER_OPTIMIZERS))
        self._validate_decode()

    def _validate_decode(self) -> None:
        decode = self.decode
        one_of(self, "decode.search", SEARCHES)
        if not 1 <= decode.source_length <= self.packed_length:
            raise UserError(
                f"config.decode.source_length={decode.source_length}: must be 1..{self.packed_length} "
                "(config.packed_length)"
            )
        if decode.extra_length < 0 or decode.alpha < 0:
            raise UserError(
                f"config.decode: extra_length={decode.extra_length}, alpha={decode.alpha}: must be at least 0"
            )
