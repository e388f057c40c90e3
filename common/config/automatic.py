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
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from common.config import data_description, fitting_batch, hardware
from common.config import overrides as configs
from common.config.choices import TINY, Choice, Draft, Rule
from common.config.hardware import Machine
from common.config.schema import RunConfig
from common.errors import UserError

NAME = "here"
# The note next to generated data; common/data/tiny_data.py writes it.
TINY_NOTE = "tiny.json"
EVALUATIONS = 10
# Evaluations without gain after which a run of real data ends: half of them, since most schedules lower the rate late.
PATIENCE = 5
WARMUP_PART = 0.2
_LENGTHS = {"train_epochs", "train_steps"}
# The folder of public weights: this variable's, or one in the user's cache.
WEIGHTS, _WEIGHTS_CACHE = "TTT_WEIGHTS", "~/.cache/timetotrain/weights"


def fitting(data_dir: str | None) -> str | None:
    """Returns the preset that suits a data folder when the user names none; None if none does.

    Data that `timetotrain data` described get `here`; generated data get `cpu-tiny`.
    """
    if not data_dir or "://" in data_dir:
        return None
    if (pathlib.Path(data_dir) / data_description.NAME).is_file():
        return NAME
    return TINY if (pathlib.Path(data_dir) / TINY_NOTE).is_file() else None


def preset_line(system: str, data_dir: str) -> str:
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
        data_description.check_fields(module.PRESETS[rule.preset], description)
    data = None if description is None else {**description.defaults, **description.fields}
    config, choices = choose(module, overrides, data, data_dir, weights=weights)
    if description is not None:  # Rejects an override that contradicts the data.
        config = data_description.apply(config, description, overrides)
    if seed is not None:
        config = dataclasses.replace(config, seed=seed)
    config.validate()
    check_counts(rule, config, data_dir)
    return config, choices


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
    base = module.PRESETS[rule.tiny if generated else rule.preset]
    draft = Draft(_start(base), {path for path, _ in overrides})
    why = f"the nearest for {'generated data' if generated else 'real data'}; the machine: {machine}"
    draft.choices.append(Choice("preset", base.system, why))
    fixed = {**counted(rule, base, data_dir), **(data or {})}
    for path, value in fixed.items():
        draft.take(path, value, "of the data")
    draft.fixed |= set(fixed)
    for path, value in overrides:
        if path != "legw":
            draft.config = configs.override(draft.config, path, value)
    if not generated:
        _weights(draft, rule, weights)
    _devices(draft, machine)
    total = _epochs(draft, base) * fitting_batch.examples_of(draft.config)
    fitting_batch.batch(draft, rule, machine, base, total)
    _schedule(draft, base)
    if not generated and draft.config.logged_target is None and not _LENGTHS & draft.fixed:
        draft.take("patience", PATIENCE, "the run ends after so many evaluations without gain; 0 trains on")
    for path, (value, why) in rule.choices(draft.config, machine, _bytes(folder)).items():
        draft.take(path, value, why)
    for path, value in overrides:
        if path == "legw":
            draft.config = configs.override(draft.config, path, value)
    overridden = {path for path, _ in overrides}
    for path, why in rule.notes.items():
        if path not in overridden:
            before = [choice.why for choice in draft.choices if choice.field == path]
            draft.say(path, "; ".join([*before, why]))
    return draft.config, draft.choices


def weights_folder(benchmark: str) -> pathlib.Path:
    """Returns the folder where `timetotrain weights` stores a benchmark's weights."""
    return pathlib.Path(os.environ.get(WEIGHTS) or os.path.expanduser(_WEIGHTS_CACHE), benchmark)


def _weights(draft: Draft, rule: Rule, before: Mapping[str, Any] | None) -> None:
    """Starts from the newest stored weights, unless the command line names others or another network."""
    if before is not None:
        for path, value in before.items():
            draft.take(path, value, "as in the checkpoint that the run goes on from")
        draft.fixed |= set(before)
        return
    stored = sorted(weights_folder(draft.config.benchmark).glob("*.npz"), key=os.path.getmtime)
    fixed_weights = {"init", draft.config.weights_field, *rule.weights} & draft.fixed
    if stored and rule.weights and not fixed_weights:
        draft.take("init", str(stored[-1]), "stored by `timetotrain weights`; --init= starts from nothing")
        for path, value in rule.weights.items():
            draft.take(path, value, "as in these weights")


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
        if (value_here := operator.attrgetter(path)(config)) != value
        and not (path == "num_classes" and value_here > value)
    }
    if wrong:
        fields = " ".join(f"--config.{path}={value}" for path, value in wrong.items())
        other_way = "" if config.system == NAME else f", or take --system={NAME}"
        expected = ", ".join(f"{path}={operator.attrgetter(path)(config)}" for path in wrong)
        raise UserError(f"{data_dir}: the files' size is not {expected}; set {fields}{other_way}")


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


def _devices(draft: Draft, machine: Machine) -> None:
    if machine.jax and "replicas" not in draft.fixed and draft.config.compile != "off":
        draft.take("replicas", "pjrt", "jax sees the GPU" + "s" * (len(machine.gpus) > 1))
        draft.take("num_replicas", len(machine.gpus), "one replica a GPU")
    elif not {"replicas", "num_replicas"} & draft.fixed and len(machine.gpus) > 1:
        draft.take("replicas", "mirrored", f"{len(machine.gpus)} GPUs in one process")
        draft.take("num_replicas", len(machine.gpus), "one replica a GPU")
    if draft.config.precision == "bf16" and not machine.bf16:
        draft.take("precision", "fp32", "no instructions for bfloat16 here")


def _epochs(draft: Draft, base: RunConfig) -> float:
    """Chooses the number of epochs; returns the rule's number even if the command line gives another."""
    size, before = fitting_batch.examples_of(draft.config), fitting_batch.examples_of(base)
    if size == before:
        return base.train_epochs
    epochs = float(max(1, round(base.train_epochs * math.sqrt(before / size))))
    why = f"{base.system} has {base.train_epochs:g} of {before} examples, these are {size}"
    draft.take("train_epochs", epochs, f"{why}; the steps grow with the root")
    return epochs


def _schedule(draft: Draft, base: RunConfig) -> None:
    """Stretches the schedule to the run's epochs and steps."""
    epochs, schedule = draft.config.train_epochs, draft.config.schedule
    stretch = epochs / base.train_epochs
    steps = stretch * fitting_batch.examples_of(draft.config) / fitting_batch.examples_of(base)
    if stretch != 1:
        draft.take("epochs_per_block", float(max(1, round(epochs / EVALUATIONS))), "some ten evaluations")
        draft.take("eval_epochs", (), "some ten evaluations")
    why = "stretched with the run"
    part = max(WARMUP_PART, base.schedule.warmup_epochs / base.train_epochs)
    # Even a short run needs as many warmup steps as the preset: with a quarter of them, SSD's loss stays high.
    least = schedule.warmup_epochs * fitting_batch.examples_of(base) / fitting_batch.examples_of(draft.config)
    warmup = min(max(schedule.warmup_epochs * stretch, least), part * epochs)
    steps_of = f"not fewer steps than {base.system}, at most {part:.2g} of the run"
    draft.take("schedule.warmup_epochs", warmup, f"{why}, {steps_of}")
    for name in schedule.in_epochs:
        value = getattr(schedule, name)
        stretched = tuple(b * stretch for b in value) if isinstance(value, tuple) else value * stretch
        draft.take(f"schedule.{name}", stretched, why)
    draft.take("schedule.warmup_steps", float(math.ceil(schedule.warmup_steps * steps)), why)
    for path in (f"schedule.{name}" for name in schedule.in_steps):
        draft.take(path, math.ceil(operator.attrgetter(path)(draft.config) * steps), why)


def _bytes(folder: pathlib.Path | None) -> int:
    """Returns the total size of the files in a folder; 0 if there is no folder."""
    if folder is None or not folder.is_dir():
        return 0
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
