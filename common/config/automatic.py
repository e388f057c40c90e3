"""Makes the preset `here`: this machine's devices, a batch that fits, a schedule for the size of the data.

`--system=here` starts from one of the benchmark's small presets: one for the user's own data or one for the generated
data. It replaces the fields that depend on the machine and on the data; docs/your-own-data.md states the rules. Fields
given on the command line stay, and the others follow them. Such a run has no target unless the user gives one. It is
logged as a smoke run: it is not an MLPerf result. TensorFlow-free.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from common.config import data_description, hardware
from common.config import overrides as configs
from common.config.hardware import Machine
from common.config.legw import legw
from common.config.schema import RunConfig
from common.errors import UserError

NAME, TINY = "here", "cpu-tiny"
# The note next to generated data; common/data/tiny_data.py writes it.
TINY_NOTE = "tiny.json"
# Share of memory that a batch may fill. The host also holds input buffers, the framework and other programs.
HOST_PART, GPU_PART = 0.5, 0.8
# Share of a GPU's memory that jax's client takes: the default of XLA_PYTHON_CLIENT_MEM_FRACTION (docs.jax.dev, "GPU
# memory allocation").
JAX_PART = 0.75
RESERVE_BYTES = 1 << 30  # TensorFlow, the weights of a small preset and their slots.
# A run has at least LEAST_STEPS steps if the batch can shrink that far. A batch keeps at least LEAST_BATCH examples,
# because batch norm computes its moments from them.
LEAST_STEPS, LEAST_BATCH = 500, 4
EVALUATIONS = 10
WARMUP_PART = 0.2
# The folder of public weights: this variable's, or one in the user's cache.
WEIGHTS, _WEIGHTS_CACHE = "TTT_WEIGHTS", "~/.cache/timetotrain/weights"
# What `Rule.told` says of fields that several benchmarks have.
SCALED = "every picture is scaled to it, in pixels; details smaller than a pixel are lost"
FLIPPED = "mirrors half of the pictures; set False where left and right differ, as for text"
CROPPED = "range of a random crop, as part of the picture; (1.0, 1.0) keeps all of it"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A benchmark's rule for `here`, from its presets.py.

    Attributes:
      own: the preset for the user's own data.
      example_bytes: function of the configuration; returns the bytes of memory that one example takes in a training
        step. lab/bench/batch_memory.py measured them; the configuration's sizes scale them.
      eval_bytes: the same of an evaluation; `example_bytes` by default.
      weight_bytes: function of the configuration; returns the bytes of weights, gradients and slots that grow with the
        data's classes, beyond RESERVE_BYTES.
      gpu_batch: maximum number of examples per GPU.
      tiny: the preset for the generated data.
      choices: function of (configuration, machine, bytes of the data folder); returns further fields
        {path: (value, why)}.
      rate_part: function of (configuration, starting preset); returns the part of the preset's learning rate that suits
        the data, and why.
      told: {path: what it does to the data} of fields that are said to the user even if the preset's value stays.
      weights: {path: value} of the fields that fit the network to weights of `timetotrain weights`; {} for none.
      enough: (examples of a class, these times epochs) with which a network that starts from nothing beats its data's
        baseline: between runs that did and did not (tests/timetotrain/run/test_ending.py). None if no run tells.
      background: number of the network's classes that are none of the data's.
      counts: function of (configuration, data folder); returns {path: value} of the fields that the files themselves
        fix, {} if files are missing. It serves benchmarks without a converter, whose data have no description.
    """

    own: str
    example_bytes: Callable[[Any], float]
    gpu_batch: int
    eval_bytes: Callable[[Any], float] | None = None
    weight_bytes: Callable[[Any], float] = lambda _: 0.0
    tiny: str = TINY
    choices: Callable[[Any, Machine, int], Mapping[str, tuple[Any, str]]] = lambda *_: {}
    rate_part: Callable[[Any, Any], tuple[float, str]] = lambda *_: (1.0, "")
    told: Mapping[str, str] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    enough: tuple[int, int] | None = None
    background: int = 0
    counts: Callable[[Any, pathlib.Path], Mapping[str, Any]] = lambda *_: {}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A field chosen for this machine or data, and why; the first choice of a run is its starting preset."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.field}={value}: {self.why}"


def fitting(data_dir: str | None) -> str | None:
    """Returns the preset that suits a data folder when the user names none; None if none does.

    Data that `timetotrain data` described get `here`; generated data get `cpu-tiny`.
    """
    if not data_dir or "://" in data_dir:
        return None
    if (pathlib.Path(data_dir) / data_description.NAME).is_file():
        return NAME
    return TINY if (pathlib.Path(data_dir) / TINY_NOTE).is_file() else None


def taken(system: str, data_dir: str) -> str:
    """Returns the line that announces the preset chosen by `fitting`."""
    kind = "your own" if system == NAME else "generated"
    return f"system   {system}, since the data in {data_dir} are {kind}; --system=NAME takes another preset"


def rule_of(module: ModuleType) -> Rule | None:
    """Returns `HERE` of a benchmark's presets.py; None for a benchmark without `--system=here`."""
    return getattr(module, "HERE", None)


def configure(
    module: ModuleType,
    overrides: Sequence[tuple[str, str]],
    replicas: str | None,
    seed: int | None,
    data_dir: str | None,
    weights: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, list[Choice]]:
    """Like common.config.overrides.configure, but for `here`: returns the validated configuration and the choices.

    `weights`: as in `choose`.

    Raises:
      UserError: the benchmark has no `here`, the data belong to another one, or an override is wrong or contradicts
        the data.
    """
    if replicas:
        overrides = [("replicas", replicas), *overrides]
    rule = rule_of(module)
    if rule is None:
        raise UserError(f"--system={NAME}: this benchmark has none; take one of {', '.join(module.PRESETS)}")
    description = data_description.read(data_dir)
    if description is not None:
        data_description.check_fields(module.PRESETS[rule.own], description)
    data = None if description is None else {**description.defaults, **description.fields}
    config, chosen = choose(module, overrides, data, data_dir, weights=weights)
    if description is not None:  # Rejects an override that contradicts the data.
        config = data_description.apply(config, description, overrides)
    if seed is not None:
        config = dataclasses.replace(config, seed=seed)
    config.validate()
    check_counts(rule, config, data_dir)
    return config, chosen


def choose(
    module: ModuleType,
    overrides: Sequence[tuple[str, str]] = (),
    data: Mapping[str, Any] | None = None,
    data_dir: str | None = None,
    machine: Machine | None = None,
    weights: Mapping[str, Any] | None = None,
) -> tuple[RunConfig, list[Choice]]:
    """Returns the configuration `here` and the choices.

    Args:
      module: the benchmark's presets.py, with PRESETS and HERE.
      overrides: [(path, value)] from the command line; these fields stay as given.
      data: {path: value} of the fields that the data fix, from their description; None without a description.
      data_dir: the data folder; None for generated data or a benchmark that needs no folder.
      machine: this machine by default.
      weights: {path: value} of `init` and of `Rule.weights` in the run that goes on, {} for no stored weights; by
        default the newest stored weights.

    Raises:
      UserError: an unknown field or value among the overrides.
    """
    machine = machine or hardware.detect()
    rule: Rule = module.HERE
    folder = pathlib.Path(data_dir) if data_dir and "://" not in data_dir else None
    generated = data is None and (data_dir is None or (folder is not None and (folder / TINY_NOTE).exists()))
    base = module.PRESETS[rule.tiny if generated else rule.own]
    chosen = _Chosen(_start(base), {path for path, _ in overrides})
    why = f"the nearest for {'generated data' if generated else 'real data'}; the machine: {machine}"
    chosen.list.append(Choice("preset", base.system, why))
    fixed = {**counted(rule, base, data_dir), **(data or {})}
    for path, value in fixed.items():
        chosen.take(path, value, "of the data")
    chosen.given |= set(fixed)
    for path, value in overrides:
        if path != "legw":
            chosen.config = configs.override(chosen.config, path, value)
    if not generated:
        _weights(chosen, rule, weights)
    _devices(chosen, machine)
    _batch(chosen, rule, machine, base, seen=_epochs(chosen, base) * _examples(chosen.config))
    _schedule(chosen, base)
    for path, (value, why) in rule.choices(chosen.config, machine, _bytes(folder)).items():
        chosen.take(path, value, why)
    for path, value in overrides:
        if path == "legw":
            chosen.config = configs.override(chosen.config, path, value)
    given = {path for path, _ in overrides}
    for path, why in rule.told.items():
        if path not in given:
            before = [choice.why for choice in chosen.list if choice.field == path]
            chosen.say(path, "; ".join([*before, why]))
    return chosen.config, chosen.list


def weights_folder(benchmark: str) -> pathlib.Path:
    """Returns the folder where `timetotrain weights` stores a benchmark's weights."""
    return pathlib.Path(os.environ.get(WEIGHTS) or os.path.expanduser(_WEIGHTS_CACHE), benchmark)


def _weights(chosen: _Chosen, rule: Rule, before: Mapping[str, Any] | None) -> None:
    """Starts from the newest stored weights, unless the command line names others or another network."""
    if before is not None:
        for path, value in before.items():
            chosen.take(path, value, "as in the checkpoint that the run goes on from")
        return
    stored = sorted(weights_folder(chosen.config.benchmark).glob("*.npz"), key=os.path.getmtime)
    named = {"init", chosen.config.weights_field, *rule.weights} & chosen.given
    if stored and rule.weights and not named:
        chosen.take("init", str(stored[-1]), "stored by `timetotrain weights`; --init= starts from nothing")
        for path, value in rule.weights.items():
            chosen.take(path, value, "as in these weights")


def counted(rule: Rule, config: Any, data_dir: str | None) -> Mapping[str, Any]:
    """Returns the fields that the files in a data folder fix, by the benchmark's rule; {} for no folder here."""
    folder = pathlib.Path(data_dir) if data_dir and "://" not in data_dir else None
    return rule.counts(config, folder) if folder is not None and folder.is_dir() else {}


def check_counts(rule: Rule, config: Any, data_dir: str | None) -> None:
    """Raises UserError with every field that the files in the data folder contradict; more classes do not conflict."""
    fixed = counted(rule, config, data_dir)
    wrong = {
        path: value
        for path, value in fixed.items()
        if (given := operator.attrgetter(path)(config)) != value
        and not (path == "num_classes" and given > value)
    }
    if wrong:
        fields = " ".join(f"--config.{path}={value}" for path, value in wrong.items())
        here = "" if config.system == NAME else f", or take --system={NAME}"
        expected = ", ".join(f"{path}={operator.attrgetter(path)(config)}" for path in wrong)
        raise UserError(f"{data_dir}: the files are of another size than {expected}; set {fields}{here}")


class _Chosen:
    """A configuration under construction; fields in `given` stay as they are."""

    def __init__(self, config: RunConfig, given: set[str]):
        self.config, self.given = config, given
        self.list: list[Choice] = []

    def take(self, path: str, value: Any, why: str) -> None:
        """Sets a field unless the command line gives it."""
        if path in self.given or operator.attrgetter(path)(self.config) == value:
            return
        self.config = with_field(self.config, path, value)
        self.say(path, why)

    def say(self, path: str, why: str) -> None:
        """Lists a field with its value and `why`; it replaces what was said of it."""
        choice = Choice(path, operator.attrgetter(path)(self.config), why)
        self.list = [other for other in self.list if other.field != path] + [choice]


def _start(base: RunConfig) -> RunConfig:
    return dataclasses.replace(
        base,
        system=NAME,
        hardware="local",
        division="open",
        smoke_run=True,
        checkpoint_blocks=1,
        source=f"chosen for the machine and the data of this run, from the preset {base.system}",
        **dict.fromkeys(base.target_fields),
    )


def _devices(chosen: _Chosen, machine: Machine) -> None:
    if machine.jax and "replicas" not in chosen.given and chosen.config.compile != "off":
        chosen.take("replicas", "pjrt", "jax sees the GPU" + "s" * (len(machine.gpus) > 1))
        chosen.take("num_replicas", len(machine.gpus), "one replica a GPU")
    elif not {"replicas", "num_replicas"} & chosen.given and len(machine.gpus) > 1:
        chosen.take("replicas", "mirrored", f"{len(machine.gpus)} GPUs in one process")
        chosen.take("num_replicas", len(machine.gpus), "one replica a GPU")
    if chosen.config.precision == "bf16" and not machine.bf16:
        chosen.take("precision", "fp32", "no instructions for bfloat16 here")


def _batch(chosen: _Chosen, rule: Rule, machine: Machine, base: RunConfig, seen: float) -> None:
    """Chooses the batch sizes, then the learning rate and warmup by LEGW; `seen`: examples over all epochs."""
    config = chosen.config
    groups, cost, eval_cost = config.num_groups, *example_bytes(rule, config)
    part = JAX_PART if config.replicas == "pjrt" else GPU_PART
    memory = (part * min(machine.gpus) if machine.gpus else HOST_PART * machine.memory) - RESERVE_BYTES
    memory -= rule.weight_bytes(config)
    fits, eval_fits = max(1, int(memory / cost)), max(1, int(memory / eval_cost))
    holds = f"holds {fits}" if memory >= cost else "may not hold even one"
    device = rule.gpu_batch if machine.gpus else power_of_two(base.global_batch_size)
    busy = (
        "enough to keep a GPU busy"
        if machine.gpus
        else f"about that of {base.system}; a CPU gains little by more"
    )
    steps = min(LEAST_STEPS, base.train_epochs * _examples(base) / base.global_batch_size)
    limits = [
        (fits * groups, f"the memory {holds} of {cost / 1e6:.2g} MB a device"),
        (device * groups, busy),
        (max(seen / steps, LEAST_BATCH * groups), f"leaves {steps:.0f} steps for {seen:.0f} examples"),
    ]
    most, why = min(limits)
    micro_batches = groups * config.accumulation_steps
    chosen.take(
        "global_batch_size",
        power_of_two(most / micro_batches) * micro_batches,
        f"a power of two a device; {why}",
    )
    while "global_batch_size" not in chosen.given and _refused(chosen.config):
        half = chosen.config.global_batch_size // 2
        if half < micro_batches:
            break
        chosen.take("global_batch_size", half, "the data are too few for more")
    _rate(chosen, base)
    part, why = rule.rate_part(config, base)
    rate = chosen.config.optimizer.base_learning_rate
    whole = part * rate / base.optimizer.base_learning_rate  # LEGW's factor too.
    chosen.take(
        "optimizer.base_learning_rate", part * rate, f"{why}; {whole:.3g} of the rate of {base.system}"
    )
    needed = power_of_two(max(1, 2 * -(-config.examples_per_evaluation // groups) - 1))
    largest = min(needed, eval_fits, max(device, base.eval_batch_size))
    chosen.take("eval_batch_size", power_of_two(largest) * groups, "a power of two that fits")


def example_bytes(rule: Rule, config: Any) -> tuple[float, float]:
    """Returns the estimated bytes of memory that an example takes in a training step and in an evaluation."""
    return rule.example_bytes(config), (rule.eval_bytes or rule.example_bytes)(config)


def _refused(config: RunConfig) -> bool:
    """Whether the benchmark rejects the configuration when the evaluation batch is as large as the training batch."""
    try:
        dataclasses.replace(config, eval_batch_size=config.global_batch_size).validate()
    except UserError:
        return True
    return False


def _rate(chosen: _Chosen, base: RunConfig) -> None:
    """Scales the learning rate and the lengths to the batch by LEGW."""
    ratio = chosen.config.global_batch_size / base.global_batch_size
    if ratio == 1:
        return
    scaled = legw(base, ratio)
    why = f"LEGW (common/config/legw.py): {ratio:.3g} times the batch of {base.system}"
    for path in (
        "optimizer.base_learning_rate",
        *(f"schedule.{name}" for name in ("initial_learning_rate", "warmup_epochs")),
        *(f"schedule.{name}" for name in ("decay_start_step", "decay_interval")),
    ):
        chosen.take(path, operator.attrgetter(path)(scaled), why)


def _epochs(chosen: _Chosen, base: RunConfig) -> float:
    """Chooses the number of epochs; returns the rule's number even if the command line gives another."""
    size, before = _examples(chosen.config), _examples(base)
    if size == before:
        return base.train_epochs
    epochs = float(max(1, round(base.train_epochs * math.sqrt(before / size))))
    why = f"{base.system} has {base.train_epochs:g} of {before} examples, these are {size}"
    chosen.take("train_epochs", epochs, f"{why}; the steps grow with the root")
    return epochs


def _schedule(chosen: _Chosen, base: RunConfig) -> None:
    """Stretches the schedule to the run's epochs and steps."""
    epochs, schedule = chosen.config.train_epochs, chosen.config.schedule
    stretch = epochs / base.train_epochs
    steps = stretch * _examples(chosen.config) / _examples(base)
    if stretch != 1:
        chosen.take("epochs_per_block", float(max(1, round(epochs / EVALUATIONS))), "some ten evaluations")
        chosen.take("first_block_epochs", 0.0, "some ten evaluations")
        chosen.take("eval_epochs", (), "some ten evaluations")
    why = "stretched with the run"
    part = max(WARMUP_PART, base.schedule.warmup_epochs / base.train_epochs)
    # Even a short run needs as many warmup steps as the preset: with a quarter of them, SSD's loss stays high.
    least = schedule.warmup_epochs * _examples(base) / _examples(chosen.config)
    warmup = min(max(schedule.warmup_epochs * stretch, least), part * epochs)
    steps_of = f"not fewer steps than {base.system}, at most {part:.2g} of the run"
    chosen.take("schedule.warmup_epochs", warmup, f"{why}, {steps_of}")
    chosen.take("schedule.boundaries", tuple(b * stretch for b in schedule.boundaries), why)
    chosen.take("schedule.train_epochs", schedule.train_epochs * stretch, why)
    chosen.take("schedule.warmup_steps", float(math.ceil(schedule.warmup_steps * steps)), why)
    for path in ("schedule.decay_start_step", "schedule.decay_interval"):
        chosen.take(path, math.ceil(operator.attrgetter(path)(chosen.config) * steps), why)


def _examples(config: RunConfig) -> int:
    """Returns the examples per epoch, in the unit of the batch and for the smallest batch."""
    return max(1, dataclasses.replace(config, global_batch_size=config.num_groups).examples_per_epoch)


def power_of_two(value: float) -> int:
    """Returns the largest power of two that is at most `value`, but at least 1."""
    return 1 << max(0, int(value).bit_length() - 1)


def with_field(config: Any, path: str, value: Any) -> Any:
    """Returns `config` with the field at `path` replaced; lists (from JSON) become tuples."""
    head, _, rest = path.partition(".")
    value = tuple(value) if isinstance(value, list) else value
    value = with_field(getattr(config, head), rest, value) if rest else value
    return dataclasses.replace(config, **{head: value})


def _bytes(folder: pathlib.Path | None) -> int:
    """Returns the total size of the files in a folder; 0 if there is no folder."""
    if folder is None or not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
