"""The rules of the contest of optimizers (optimizers.py): what competes, where, and what a trial may change.

Every optimizer gets the same number of trials at each batch. Optuna draws them from ranges that follow one rule: the
rate within a factor of RANGE of the usual one, scaled by the square root of the batch; the decay of the momentum or of
the first average; the warmup as a part of the run. Everything else stays as published. Schedules are the preset's;
Schedule-Free needs a constant rate instead.

Trials are halved once, by the same rule for all: every trial trains the first QUARTER of its epochs, then one in six,
the best, trains all of them from the beginning. Where the preset's rate is constant, the winner trains once more with a
rate that falls linearly to 0 after the warmup. The best run is the better of these two, or the winner where there is
only one. It is repeated with several seeds on test data, and once without its warmup on validation data, which shows
what the warmup buys.
"""

import dataclasses
import importlib
import math
import pathlib
from collections.abc import Callable, Sequence

import optuna

from common.config import overrides as configs
from common.config.optimizer import RULES
from lab.studies import legw_mnist, legw_ptb, multi30k, resnet_photos
from lab.studies.data import cache, filled, unpack
from lab.studies.runner import settings

RANGE = 30.0  # Ours: a rate may be this many times larger or smaller than the published one.
KEPT = (0.7, 0.99)  # Ours: of momentum, or of beta_1.
WARMUP = (0.0, 0.25)  # Ours: of the run's epochs.
QUARTER = 4  # Ours: a short trial has the run's epochs divided by this.
ONE_IN = 6  # Ours: of so many short trials, one trains to the end.
STAGES = ("short", "tune", "decay", "no-warmup", "final", "scaled", "legw")
TUNING = ("short", "tune", "decay", "no-warmup")  # Stages that evaluate on validation data.


@dataclasses.dataclass(frozen=True)
class Entry:
    """An optimizer of the contest.

    Attributes:
      name: the row's name.
      rate: its usual rate at the base batch; the middle of the range.
      kept: the field that `KEPT` is about.
      flags: what makes it this optimizer; values are its authors', except those that the comment at ENTRIES names.
    """

    name: str
    rate: float
    kept: str
    flags: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
      stage: one of STAGES; those of TUNING evaluate on validation data, the others on test data.
      optimizer, batch: the cell.
      number: of the trial, or the seed of another stage.
      seed: the run's seed; all trials have seed 0.
      point: what the row tries; {} for "legw".
      flags: flags of `python -m BENCHMARK`, besides data and result folders.
      base: the batch that a "scaled" row's point was tuned at; 0 for other stages.
    """

    stage: str
    optimizer: str
    batch: int
    number: int
    seed: int
    point: dict[str, float]
    flags: tuple[str, ...]
    base: int = 0

    @property
    def id(self) -> str:
        tuned_at = f"-from-{self.base}" if self.base else ""
        return f"{self.stage}-{self.optimizer}-{self.batch}{tuned_at}-{self.number}"


def _entry(name: str, rate: float, kept: str = "beta_1", rule: str = "", **fields: object) -> Entry:
    epsilon = {"epsilon": 1e-8} if "epsilon" in RULES[rule or name].own_fields() else {}
    values = {"name": rule or name, **epsilon, "weight_decay": 1e-4, **fields}
    return Entry(name, rate, kept, settings(**{f"optimizer__{k}": v for k, v in values.items()}))


# The middle of each range of rates: tf_keras's default for Adam; the defaults of optax and of the authors' code for the
# others. Nesterov's 0.04 and the decay of 1e-4 are this project's choice: the decay is small for all of them alike,
# because the contest is about the step.
ENTRIES = (
    _entry("nesterov", 0.04, "momentum", "sgd", nesterov=True, scaled_momentum=True),
    _entry("adam", 1e-3, weight_decay=0),
    _entry("adamw", 1e-3),
    _entry("nadamw", 1e-3),
    _entry("lamb", 5e-3, epsilon=1e-6),
    _entry("shampoo", 1e-3, "momentum", nesterov=True, grafting="adam"),
    _entry("soap", 3e-3, beta_2=0.95),
    _entry("muon", 0.02, "momentum", nesterov=True, adamw_rate_factor=0.1),
    _entry("schedule_free_sgd", 0.5, "momentum"),
    _entry("schedule_free_adamw", 2.5e-3),
)


@dataclasses.dataclass(frozen=True)
class Arena:
    """Where they compete.

    Attributes:
      benchmark, preset, unit, lower_is_better: as in `legw.Study`; the preset is at the first batch.
      batches: global batch sizes.
      epochs: of every run.
      never: a target that no run meets.
      targets: qualities; the contest compares the steps to each, and draws those to the first.
      validation, test: (data folder, flags) of trials and of final runs.
      legw: {row: flags} at the first batch, which LEGW scales; () if LEGW is not published for it.
      decay: flags of the stage "decay", which repeats the winner with a rate that falls; (): the preset's rate falls.
      without: optimizers that the benchmark does not take.
      micro: most examples at once; a larger batch is accumulated.
      flags: of every run.
    """

    benchmark: str
    preset: str
    batches: tuple[int, ...]
    epochs: float
    never: float
    targets: tuple[float, ...]
    unit: str
    validation: tuple[Callable[[], pathlib.Path], tuple[str, ...]]
    test: tuple[Callable[[], pathlib.Path], tuple[str, ...]]
    lower_is_better: bool = False
    legw: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    decay: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    micro: int = 8192
    flags: tuple[str, ...] = ()

    @property
    def short_epochs(self) -> int:
        return max(1, round(self.epochs / QUARTER))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of optimizers and of rows that follow LEGW."""
        return (*(entry.name for entry in self.entries()), *self.legw)

    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in ENTRIES if entry.name not in self.without)


def _photos(tune: bool) -> pathlib.Path:
    source = unpack(resnet_photos.ARCHIVE)
    records = source.parent / f"{resnet_photos.ARCHIVE}-records-{'tune' if tune else 'all'}"
    if not any(records.glob("train-*")):
        resnet_photos._convert(source, records, tune)
    return records


def _captions_for_test() -> pathlib.Path:
    """Returns records whose evaluation is the test set's: what the study of Multi30k translates at its end."""
    source = unpack("text") / "multi30k"
    parts = (("train", "train"), ("eval", multi30k.TEST))
    return filled(
        cache() / "multi30k-transformer-test",
        lambda made: multi30k._fill("transformer", source, made, parts),
    )


ARENAS = {
    "mnist": Arena(
        "mnist",
        "cpu-128",
        (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        25.0,
        legw_mnist.STUDY.never,
        (0.97, 0.985),
        "accuracy",
        (legw_mnist.STUDY.data, legw_mnist.STUDY.held_out),
        (legw_mnist.STUDY.data, ()),
        # The paper gives no base rate; the preset's was tuned on held-out data.
        legw={"legw": ()},
        decay=settings(schedule__kind="poly", schedule__power=1, schedule__end_learning_rate=0),
        micro=1024,  # A step of 8,192 takes 12 % less processor time than in one piece (AMD EPYC, one core).
    ),
    "ptb": Arena(
        "ptb",
        "cpu-20",
        (20, 40, 80, 160, 320, 640, 1280),
        13.0,
        legw_ptb.STUDY.never,
        (200.0, 120.0),
        "perplexity",
        (legw_ptb.STUDY.data, legw_ptb.STUDY.held_out),
        (legw_ptb.STUDY.data, ()),
        lower_is_better=True,
        legw={
            "legw": (),
            "legw-tuned": settings(optimizer__base_learning_rate=0.1, schedule__warmup_epochs=0.1),
        },
        flags=legw_ptb.STUDY.flags,
    ),
    "resnet": Arena(
        "resnet",
        "cpu-photos",
        (64, 128, 256, 512, 1024, 2048, 4096),
        24.0,
        2.0,
        (0.5,),
        "top-1",
        (lambda: _photos(True), settings(num_train_examples=8000, num_eval_examples=2000)),
        (lambda: _photos(False), ()),
        legw={"legw": ()},
        without=("adam",),
        micro=512,
    ),
    "transformer": Arena(
        "transformer",
        "cpu-multi30k",
        (32, 64, 128, 256, 512, 1024),
        28.0,
        1.0,
        (0.35,),
        "BLEU",
        (lambda: multi30k._convert("transformer"), ()),
        (_captions_for_test, settings(num_eval_examples=multi30k.TEST_LINES)),
        without=("nesterov",),
        micro=64,
    ),
}


def drawn(arena: Arena, entry: Entry, batch: int, trials: int, seed: int) -> list[dict[str, float]]:
    """Returns the points of all trials, which depend on nothing else: a longer search begins with a shorter one's.

    Returns:
      A dict for each trial: "rate", the base rate; "kept", momentum or beta_1; "warmup", in epochs.
    """
    middle = entry.rate * math.sqrt(batch / arena.batches[0])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    points = []
    for _ in range(trials):
        trial = study.ask()
        points.append(
            {
                "rate": trial.suggest_float("rate", middle / RANGE, middle * RANGE, log=True),
                # Uniform in the logarithm of 1 - x.
                "kept": 1 - trial.suggest_float("left", 1 - KEPT[1], 1 - KEPT[0], log=True),
                "warmup": trial.suggest_float("warmup", *WARMUP) * arena.epochs,
            }
        )
    return points


def whole_trials(trials: int) -> int:
    """Returns how many of a cell's trials train to the end."""
    return max(1, trials // ONE_IN)


def batch_flags(arena: Arena, batch: int) -> tuple[str, ...]:
    """Returns the flags of a batch."""
    return settings(global_batch_size=batch, accumulation_steps=max(1, batch // arena.micro))


def flags(arena: Arena, entry: Entry, batch: int, point: dict[str, float]) -> tuple[str, ...]:
    """Returns the flags of a run at a point."""
    own = {
        "optimizer__base_learning_rate": f"{point['rate']:.6g}",
        f"optimizer__{entry.kept}": f"{point['kept']:.6g}",
        "schedule__warmup_epochs": f"{point['warmup']:.6g}",
    }
    constant = {"schedule__kind": "constant"} if entry.name.startswith("schedule_free") else {}
    return (*entry.flags, *batch_flags(arena, batch), *settings(**own, **constant))


def legw_flags(arena: Arena, own: Sequence[str], batch: int) -> tuple[str, ...]:
    """Returns the flags of a row of `arena.legw` at a batch: LEGW's, with its warmup within the run.

    LEGW multiplies the preset's batch, so the flags do not set the batch.
    """
    factor = batch // arena.batches[0]
    preset = importlib.import_module(f"{arena.benchmark}.presets").PRESETS[arena.preset]
    longest = arena.epochs / factor  # At the first batch.
    within = {}
    if configs.override_all(preset, own).schedule.warmup_epochs > longest:
        within = {"schedule__warmup_epochs": longest}
    return (*own, *settings(**within, legw=factor, accumulation_steps=max(1, batch // arena.micro)))


def scaled(arena: Arena, point: dict[str, float], base: int, batch: int) -> dict[str, float]:
    """Returns a point of the batch `base` for another: LEGW's square root and its warmup, within the run."""
    factor = batch / base
    warmup = min(point["warmup"] * factor, arena.epochs)
    return {**point, "rate": point["rate"] * math.sqrt(factor), "warmup": warmup}
