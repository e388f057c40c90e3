"""Defines the configuration of GNMT and checks its fields. TensorFlow-free."""

import dataclasses
from typing import ClassVar

from common.config.closed_fields import added_field, data_field
from common.config.quality import Measure
from common.config.ranges import at_least, fraction, one_of, positive
from common.config.schema import RunConfig
from common.errors import UserError

WIRINGS = ("reference", "google")
SMOOTHINGS = ("all", "others")


@dataclasses.dataclass(frozen=True)
class Data:
    """Text files from `gnmt/convert.py`, and their languages.

    Attributes:
      eval_source, eval_reference: text files inside the data folder; line i of one translates line i of the other.
      source_language, target_language: ISO codes; Moses's tokenizer rules differ by language.
    """

    eval_source: str = "eval.source"
    eval_reference: str = "eval.reference"
    source_language: str = "en"
    target_language: str = "de"

    # Constants of every preset.
    # TFRecord shards of sentence pairs inside the data folder.
    train_pattern: ClassVar[str] = "train-*"
    # Files inside the data folder with the byte-pair encoding's merges and tokens.
    codes: ClassVar[str] = "bpe.codes"
    vocabulary: ClassVar[str] = "vocab.bpe"


@dataclasses.dataclass(frozen=True)
class Decode:
    """The beam search of an evaluation; defaults: docs/sources.md, mlperf 1.5.

    Attributes:
      source_length: padded length of every source sentence in tokens, including BOS and EOS.
      target_length: maximum number of search steps.
      count_start: the length of the penalty counts the start token, as in NVIDIA's code.
    """

    source_length: int = 160
    target_length: int = 160
    count_start: bool = added_field(False)

    # Constants of every preset.
    # Number of hypotheses kept.
    beam_size: ClassVar[int] = 5
    # Exponent of the length penalty ((5 + length) / 6)^alpha.
    alpha: ClassVar[float] = 0.6
    # Weight of the coverage penalty, the sum over source tokens of log(min(attention received, 1)).
    coverage: ClassVar[float] = 0.1


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """All settings of a run of GNMT.

    A training example is a sentence pair. In each step, all replicas hold pairs from one bucket, padded to its limit.

    Attributes:
      vocabulary_size: number of tokens that source and target share, including the three special ones.
      max_sequence_length: pairs with a longer side are discarded; a side's length includes BOS and EOS.
      bucket_limits: static batch lengths, ascending; the last one is `max_sequence_length`.
      layers: number of encoder layers, the first being bidirectional, and of decoder layers.
      width: width of embeddings and LSTMs.
      dropout: dropout rate on the input of every LSTM.
      smoothing_over: classes that share label_smoothing: "all", as in the reference and Google's v0.6 code, or
        "others", all but the label, as in Google's v0.7 code (docs/sources.md, mlperf 0.7).
      init_scale: all variables except biases start uniform in +-init_scale.
      bias_scale: biases of LSTMs and logits start uniform in +-bias_scale: 0.1 in the reference (REF seq2seq/utils.py,
        models/decoder.py), 0 in Google's code. The attention's bias starts at 0.
      wiring: "reference": the first decoder layer sees only the embeddings; "google": it also sees the attention
        context of the previous step (docs/sources.md, mlperf 2). The reference's softmax has a bias; Google's has none.
    """

    benchmark: str = "gnmt"
    num_train_examples: int = data_field(3442299)
    num_eval_examples: int = 3003
    quality_target: float | None = 0.24
    vocabulary_size: int = data_field(32316)
    max_sequence_length: int = 48
    bucket_limits: tuple[int, ...] = (10, 20, 30, 40, 48)
    layers: int = 4
    width: int = 1024
    dropout: float = 0.2
    smoothing_over: str = "all"
    init_scale: float = 0.1
    wiring: str = "reference"
    data: Data = Data()
    decode: Decode = Decode()
    bias_scale: float = added_field(0.0)

    # Fraction of the target probability that is spread over classes, in every source.
    label_smoothing: ClassVar[float] = 0.1
    partitions: ClassVar[int] = 1  # Only networks of images have parts.
    model: ClassVar[str] = "gnmt"
    schedules: ClassVar[tuple[str, ...]] = ("gnmt",)
    quality: ClassVar[Measure] = Measure("BLEU", unit="points")

    @property
    def serving_length(self) -> int:
        """Maximum tokens of a sentence to translate outside a run: the longest in training or evaluation."""
        return max(self.decode.source_length, self.max_sequence_length)

    def validate_own_fields(self) -> None:
        """Raises UserError if a field is out of range or fields contradict each other."""
        positive(self, "init_scale")
        at_least(self, 4, "vocabulary_size")
        at_least(self, 2, "layers", "max_sequence_length")
        at_least(self, 1, "width")
        fraction(self, "dropout")
        if not self.bias_scale >= 0:
            raise UserError(f"config.bias_scale={self.bias_scale}: must be at least 0")
        one_of(self, "wiring", WIRINGS)
        one_of(self, "smoothing_over", SMOOTHINGS)
        limits = self.bucket_limits
        if not limits or limits[0] < 1 or any(a >= b for a, b in zip(limits, limits[1:])):
            raise UserError(f"config.bucket_limits={list(limits)}: must be positive and ascend")
        if limits[-1] != self.max_sequence_length:
            raise UserError(
                f"config.bucket_limits={list(limits)} must end with config.max_sequence_length="
                f"{self.max_sequence_length}: give both"
            )
        self._validate_decode()

    def _validate_decode(self) -> None:
        decode = self.decode
        if min(decode.source_length, decode.target_length) < 1:
            raise UserError(
                f"config.decode: source_length={decode.source_length}, target_length={decode.target_length}: must be "
                "at least 1"
            )
