"""Presets of the Penn Treebank language model, and what of a configuration is logged. TensorFlow-free.

LEGW = "Large-Batch Training for LSTM and Beyond", section 5.1.2. Its network and schedule are those of the "small"
model of TensorFlow's ptb_word_lm.py (Zaremba et al., "Recurrent Neural Network Regularization"), which LEGW trains with
momentum and for seven epochs, not four, at the full rate.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from common.config.clock import Clock
from common.config.legw import legw
from common.config.schema import Optimizer, RunConfig, Schedule
from common.errors import UserError

SPLITS = ("test", "valid")


@dataclasses.dataclass(frozen=True)
class Data:
    """Which text is read.

    Attributes:
      eval_split: "test", or "valid" for choosing hyperparameters.
      train_file, valid_file, test_file: inside the data folder; words between blanks, a sentence a line.
    """

    eval_split: str = "test"
    train_file: str = "ptb.train.txt"
    valid_file: str = "ptb.valid.txt"
    test_file: str = "ptb.test.txt"


@dataclasses.dataclass(frozen=True)
class Config(RunConfig):
    """Everything that decides a run of the language model.

    The text is cut into `global_batch_size` streams of equal length, which are read side by side, `num_steps` words a
    step; the LSTM's state is carried from step to step of a stream and starts anew in each epoch.

    Attributes:
      num_train_examples, num_eval_examples: words (with an <eos> for every line) of the two texts, as logged.
      global_batch_size, eval_batch_size: streams.
      vocabulary_size: different words of the training text; outputs of the network.
      units, layers: of the LSTM; `units` is the size of the embedding too.
      num_steps: words of a stream in a step, over which gradients flow.
      init_scale: embedding, kernels and output start uniform in +-init_scale, LSTM biases at 0.
      hoisted: the form of the LSTM, see common/layers/lstm.py; the results are equal.
      carry: False starts every step from zeros, a deliberate fault for tests.
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
    quality_target: float = 116.5
    vocabulary_size: int = 10000
    units: int = 200
    layers: int = 2
    num_steps: int = 20
    init_scale: float = 0.1
    hoisted: bool = True
    carry: bool = True
    data: Data = Data()

    @property
    def train_steps_per_epoch(self) -> int:
        """Every stream's last word has no successor to predict; a rest shorter than a step is left out."""
        return (self.num_train_examples // self.global_batch_size - 1) // self.num_steps

    @property
    def eval_words_per_stream(self) -> int:
        """Words that a stream predicts in an evaluation, rounded up: every word but the first is predicted once."""
        return -(-(self.num_eval_examples - 1) // self.eval_batch_size)

    @property
    def examples_per_epoch(self) -> int:
        """Sequences of `num_steps` words."""
        return self.train_steps_per_epoch * self.global_batch_size

    @property
    def examples_per_evaluation(self) -> int:
        """Sequences, of which the last of each stream is padded."""
        return -(-self.eval_words_per_stream // self.num_steps) * self.eval_batch_size

    def validate(self) -> None:
        """Raises UserError where fields contradict each other."""
        super().validate()
        if self.partitions > 1:
            raise UserError(f"config.partitions={self.partitions}: ptb has no images to partition; use 1")
        for name in ("vocabulary_size", "units", "layers", "num_steps"):
            if getattr(self, name) < 1:
                raise UserError(f"config.{name}={getattr(self, name)}: must be at least 1")
        if self.num_eval_examples < 2:
            raise UserError(
                f"config.num_eval_examples={self.num_eval_examples}: must be at least 2: the first is not predicted"
            )
        if self.data.eval_split not in SPLITS:
            raise UserError(
                f"config.data.eval_split={self.data.eval_split!r}: unknown; known: {', '.join(SPLITS)}"
            )
        if self.train_steps_per_epoch < 1:
            raise UserError(
                f"config.global_batch_size={self.global_batch_size}: {self.num_train_examples} words give streams "
                f"shorter than config.num_steps={self.num_steps}; use fewer streams"
            )


def hyperparameters(config: Config) -> list[tuple[str, Any, dict]]:
    """What the log's header says about the run: [(key, value, metadata)], read from `config`."""
    optimizer, schedule = config.optimizer, config.schedule
    warmup = schedule.logged_warmup_epochs(Clock.of(config).steps_per_epoch)
    pairs: dict[str, Any] = {
        "global_batch_size": config.global_batch_size,
        "train_epochs": config.train_epochs,
        "num_steps": config.num_steps,
        "init_scale": config.init_scale,
        "opt_name": optimizer.name,
        "opt_base_learning_rate": optimizer.base_learning_rate,
        "opt_learning_rate_warmup_epochs": warmup,
        "opt_learning_rate_schedule": schedule.kind,
        "opt_clip_norm": optimizer.clip_norm,
    }
    if schedule.kind == "step":
        pairs |= {
            "opt_learning_rate_decay_boundary_epochs": list(schedule.boundaries),
            "opt_learning_rate_decay_factor": schedule.factor,
        }
    if optimizer.has_momentum:
        pairs["opt_momentum"] = optimizer.momentum
    return [(key, value, {}) for key, value in pairs.items()]


# The loss is that of ptb_word_lm.py, summed over the steps of a sequence and averaged over streams, and so are the rate
# and the clipping norm of 5 that go with it. LEGW does not give the base rate and warmup: docs/ptb-presets.md says how
# ours were chosen.
_LEGW = Config(
    optimizer=Optimizer(
        name="sgd", base_learning_rate=0.03, momentum=0.9, scaled_momentum=True, clip_norm=5.0
    ),
    schedule=Schedule(
        kind="step", warmup_epochs=0.025, boundaries=(7.0, 8.0, 9.0, 10.0, 11.0, 12.0), factor=0.5
    ),
)
LARGEST_FACTOR = 32
_LEGW_PRESETS = {
    f"cpu-{20 * 2**i}": replace(
        legw(_LEGW, 2**i),
        source=f"LEGW 5.1.2, batch 20 x {2**i}; base rate and warmup are ours",
    )
    for i in range(LARGEST_FACTOR.bit_length())
}

# --- A laptop, a minute: the generated language of ptb/tiny.py.
_CPU_TINY = replace(
    _LEGW,
    source="this repository: tuned for two CPU cores on the language that ptb/tiny.py generates",
    division="open",
    smoke_run=True,
    num_train_examples=40000,
    num_eval_examples=8000,
    vocabulary_size=31,
    units=64,
    num_steps=10,
    quality_target=4.0,
    optimizer=replace(_LEGW.optimizer, base_learning_rate=0.1),
    schedule=replace(_LEGW.schedule, warmup_epochs=0.1),
)

PRESETS: dict[str, Config] = {
    name: replace(config, system=name) for name, config in {"cpu-tiny": _CPU_TINY, **_LEGW_PRESETS}.items()
}
