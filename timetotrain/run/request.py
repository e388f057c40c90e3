"""Answers what a command line asks for: which preset, which configuration, which data. TensorFlow-free.

`timetotrain run`, `python -m BENCHMARK` and their help ask here, and nowhere else.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

from common.config import automatic, backend, benchmarks, data_description
from common.config import overrides as configs
from common.config.schema import RunConfig
from common.distributed import process as processes
from common.errors import UserError
from common.files import ROOT
from timetotrain.run.options import BenchmarkFlags

B = TypeVar("B", bound=BenchmarkFlags)


def with_system(options: B, otherwise: str | None = None) -> B:
    """Returns the flags with a preset: the one that is named, that the folder of data asks for, or `otherwise`.

    A line on standard error tells of the data's choice.
    """
    if options.system:
        return options
    fitting = automatic.fitting(options.data_dir)
    if fitting and processes.here().main:
        print(automatic.taken(fitting, str(options.data_dir)), file=sys.stderr)
    return dataclasses.replace(options, system=fitting or otherwise)


def configure(
    benchmark: str, options: BenchmarkFlags, overrides: Sequence[tuple[str, str]]
) -> tuple[RunConfig, list[automatic.Choice]]:
    """Returns the validated configuration, and what `--system=here` chose of it.

    Args:
      benchmark: its name.
      options: the flags.
      overrides: [(path, value)] of the command line.

    Raises:
      UserError: an unknown preset, field or value, or fields that contradict each other or the data.
    """
    module = benchmarks.module(benchmark, "presets")
    overrides = [*_target(module.Config, options.target), *overrides]
    if options.system == automatic.NAME:
        return automatic.configure(module, overrides, options.replicas, options.seed, options.data_dir)
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
        config = backend.chosen(config, options.replicas, overrides)
    return data_description.filled(config, options.data_dir, overrides), []


def preset(benchmark: str, options: BenchmarkFlags) -> RunConfig:
    """Returns the preset that the flags name, without overrides; of `here`, what it chooses."""
    if options.system == automatic.NAME:
        return configure(benchmark, options, [])[0]
    return configs.preset(benchmarks.module(benchmark, "presets").PRESETS, str(options.system))


def check_data_dir(path: str | None, benchmark: str) -> None:
    """Raises UserError where `--data_dir` is missing or no folder."""
    own = " or `timetotrain data`" if _takes_own_data(benchmark) else ""
    fix = f"name the folder that {benchmark}/init_datasets.sh{own} filled"
    if not path:
        raise UserError(f"--data_dir: missing; {fix}")
    # TensorFlow checks an object store later.
    if "://" not in path and not os.path.isdir(path):
        raise UserError(f"--data_dir={path}: no such folder; {fix}")


def no_system(benchmark: str, data: str | None) -> UserError:
    """Returns the error of a run whose preset nobody names, and whose data ask for none."""
    known = ", ".join([automatic.NAME, *benchmarks.module(benchmark, "presets").PRESETS])
    where = f" for the data in {data}" if data else ""
    own = ""
    if _takes_own_data(benchmark):
        own = f"; of your own files, `timetotrain data {benchmark} FILES OUT` makes a folder that needs none"
    return UserError(f"--system: name a preset{where}; known: {known}{own}")


def said(chosen: Sequence[automatic.Choice]) -> dict[str, Any]:
    """Returns what was chosen for this machine and data, for JSON and the log; {} where nothing was."""
    return {"chosen": {c.field: {"value": c.value, "why": c.why} for c in chosen}} if chosen else {}


def _takes_own_data(benchmark: str) -> bool:
    return (ROOT / benchmark / "custom_data.py").is_file()


def _target(config: type[RunConfig], target: str | None) -> list[tuple[str, str]]:
    """Returns --target as overrides: one number for every target of the benchmark, or one for each."""
    if target is None:
        return []
    names, values = config.target_fields, target.split(",")
    if len(values) == 1:
        values *= len(names)
    if len(values) != len(names):
        raise UserError(f"--target={target}: give one number, or {len(names)}: {', '.join(names)}")
    return list(zip(names, values))
