"""Checks what a run logged as `closed` changes in its preset, and records its starting weights. TensorFlow-free.

The closed division compares systems, not models: a submitter chooses hardware, numerics and the hyperparameters that
the rules list. A field that describes the system or the problem is marked in its metadata (`system_field`,
`rule_field` of common/config/closed_fields.py). Of the other fields, a closed run may change only those with a key in
the benchmark's rule files: the log's header shows these values, and the checker judges them.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from common import files
from common.config import fields
from common.config.closed_fields import closed_rule
from common.config.rules import LATER_OPTIMIZERS, with_every_field
from common.config.schema import RunConfig
from common.errors import UserError

C = TypeVar("C", bound=RunConfig)
Hyperparameters = Callable[[Any], Sequence[tuple[str, Any, Any]]]


def overrides(config: RunConfig, preset: RunConfig) -> dict[str, Any]:
    """Returns {path: value} of the fields where `config` differs from `preset`, in field order."""
    preset_values = {field.path: field.value for field in fields.describe(with_every_field(preset))}
    described = fields.describe(config)
    return {field.path: field.value for field in described if field.value != preset_values[field.path]}


def check(config: C, preset: C, hyperparameters: Hyperparameters) -> None:
    """Refuses to log a run as closed if its changes escape the closed rules.

    Raises UserError if the division is closed, and either a field that the rules do not free differs from the preset,
    or the run starts from random weights although the rules demand a trained network.
    """
    if config.division != "closed":
        return
    fix = "leave it to the preset, or log the run as --config.division=open"
    _check_optimizer(config)
    fixed = not_freed(config, preset, hyperparameters)
    if fixed:
        names = ", ".join(f"config.{name}={value}" for name, value in fixed.items())
        raise UserError(
            f"{names}: the closed rules of {config.benchmark} {config.ruleset} do not free this from preset "
            f"{preset.system}; {fix}"
        )
    if config.starts_from and not config.initial_weights_file:
        raise UserError(
            f"config.{config.weights_field}: a closed run of {config.benchmark} starts from {config.starts_from}, not "
            f"from random weights; give --config.{config.weights_field}=FILE, or log the run as --config.division=open"
        )


def _check_optimizer(config: RunConfig) -> None:
    """Raises UserError for a later optimizer (docs/optimizers.md) that the closed rules of the round do not name."""
    from compliance.log import rules

    name, names = config.optimizer.name, rules.optimizers(config.ruleset, config.benchmark)
    if name in LATER_OPTIMIZERS and name not in names:
        verdict = f"know {', '.join(names)}" if names else "name no such optimizer"
        raise UserError(
            f"config.optimizer.name={name}: the closed rules of {config.benchmark} {config.ruleset} {verdict}; log the "
            "run as --config.division=open"
        )


def not_freed(config: C, preset: C, hyperparameters: Hyperparameters) -> dict[str, Any]:
    """Returns the `overrides` that neither describe the system nor change a header line that the closed rules check."""
    header = _judged(config, hyperparameters)

    def free(path: str) -> bool:
        rule = closed_rule(type(config), path)
        if rule or path == config.weights_field:
            return rule != "fixed"
        try:
            return _judged(_with_field_of(config, preset, path), hyperparameters) != header
        except UserError:  # The preset's value conflicts with other fields, so no header shows the change.
            return False

    return {path: value for path, value in overrides(config, preset).items() if not free(path)}


def _judged(config: RunConfig, hyperparameters: Hyperparameters) -> dict[str, Any]:
    """Returns the header values that the benchmark's closed rules check."""
    from compliance.log import rules

    section = rules.section_name(config.ruleset, "closed", config.benchmark)
    names = [n for n in rules.names(config.ruleset) if n == section or n.startswith(section + "_")]
    keys = {key for name in names for key in rules.compiled(config.ruleset, name)}
    header = {key: (value, metadata) for key, value, metadata in hyperparameters(config)}
    header |= {"train_samples": config.num_train_examples, "eval_samples": config.num_eval_examples}
    return {key: value for key, value in header.items() if key in keys}


def _with_field_of(config: C, other: C, path: str) -> C:
    """Returns `config` with the field at `path` taken from `other`."""
    head, _, rest = path.partition(".")
    value = getattr(other, head)
    # The fields of another rule or kind come with it.
    if rest and type(value) is type(getattr(config, head)):
        value = _with_field_of(getattr(config, head), value, rest)
    return dataclasses.replace(config, **{head: value})


def initial_weights(config: RunConfig) -> Any:
    """Returns the run's starting weights, for its log: "random", or {"file": name, "sha256": of its content}.

    The files of a folder are hashed in sequence in name order. A file in an object store is not hashed.

    Raises UserError if the file does not exist.
    """
    path = config.initial_weights_file
    if not path:
        return "random"
    name = path.rstrip("/").rpartition("/")[2]
    if "://" in path:
        return {"file": path}
    try:
        digest = files.sha256(*_files(pathlib.Path(path)))
    except OSError as error:
        field = "init" if config.init else config.weights_field
        raise UserError(f"config.{field}={path}: {error.strerror}; name a file that exists") from error
    return {"file": name, "sha256": digest}


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns a file, or a folder's files."""
    paths = [p for p in (path.iterdir() if path.is_dir() else [path]) if p.is_file()]
    if not paths:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    return sorted(paths)
