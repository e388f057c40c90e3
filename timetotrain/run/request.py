"""Resolves a command line's preset, configuration and data. TensorFlow-free.

`timetotrain run`, `python -m BENCHMARK` and their help all use this module.
"""

import contextlib
import dataclasses
import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

from common.config import automatic, backend, benchmarks, data_description
from common.config import overrides as configs
from common.config.digest import from_dict
from common.config.schema import RunConfig
from common.distributed import process as processes
from common.errors import UserError
from timetotrain.run.options import BenchmarkFlags

B = TypeVar("B", bound=BenchmarkFlags)


def with_system(options: B, otherwise: str | None = None) -> B:
    """Returns the flags with a preset: the named one, else the one the data folder determines, else `otherwise`.

    If the data decide, a line on standard error says so.
    """
    if options.system:
        return options
    fitting = automatic.fitting(options.data_dir)
    if fitting and processes.current().main:
        print(automatic.preset_line(fitting, str(options.data_dir)), file=sys.stderr)
    return dataclasses.replace(options, system=fitting or otherwise)


def configure(
    benchmark: str, options: BenchmarkFlags, overrides: Sequence[tuple[str, str]]
) -> tuple[RunConfig, list[automatic.Choice]]:
    """Returns the validated configuration, and the choices that `--system=here` made; overrides are [(path, value)].

    Raises UserError if a preset, field or value is unknown, or fields contradict each other or the data.
    """
    module = benchmarks.module(benchmark, "presets")
    overrides = [*_target(module.Config, options.target), *overrides]
    if options.system == automatic.NAME:
        # Each host has its own stored weights, and the processes must build the same network.
        several = processes.current().count > 1
        weights = _before(module, options.checkpoint_dir) or ({} if several else None)
        if several:  # Only a run of one process ends early.
            overrides = [("patience", "0"), *overrides]
        return automatic.configure(
            module, overrides, options.replicas, options.seed, options.data_dir, weights
        )
    config = configs.configure(
        module.PRESETS,
        module.Config,
        options.system,
        overrides,
        options.replicas,
        options.seed,
        [automatic.NAME],
    )
    if options.system is not None:
        config = backend.choose(config, options.replicas, overrides)
    return data_description.filled(config, options.data_dir, overrides), []


def _before(module: ModuleType, folder: str | None) -> Mapping[str, Any] | None:
    """Returns the fields of starting weights in the newest readable checkpoint of a folder; None if it has none."""
    rule = automatic.rule_of(module)
    if not folder or not rule:
        return None
    from common.train import checkpoint_file  # Here, since it needs numpy, which help does without.

    for path in reversed(checkpoint_file.checkpoints(pathlib.Path(folder))):
        with contextlib.suppress(UserError):  # The resume says what is wrong with it.
            saved = from_dict(module.Config, checkpoint_file.config_of(path))
            return {name: getattr(saved, name) for name in ("init", *rule.weights)}
    return None


def preset(benchmark: str, options: BenchmarkFlags) -> RunConfig:
    """Returns the preset that the flags name, without overrides; for `here`, the preset that it chooses."""
    if options.system == automatic.NAME:
        return configure(benchmark, options, [])[0]
    return configs.preset(benchmarks.module(benchmark, "presets").PRESETS, str(options.system))


def choice_facts(choices: Sequence[automatic.Choice]) -> dict[str, Any]:
    """Returns the choices for this machine and data, for JSON and the log; {} if there are none."""
    return {"chosen": {c.field: {"value": c.value, "why": c.why} for c in choices}} if choices else {}


def _target(config: type[RunConfig], target: str | None) -> list[tuple[str, str]]:
    """Returns --target as overrides: one number for all of the benchmark's targets, or one number each."""
    if target is None:
        return []
    names, values = config.target_fields, target.split(",")
    if len(values) == 1:
        values *= len(names)
    if len(values) != len(names):
        raise UserError(f"--target={target}: give one number, or {len(names)}: {', '.join(names)}")
    return list(zip(names, values))
