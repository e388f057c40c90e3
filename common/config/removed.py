"""Names the fields of earlier versions, so that a flag or a file with one ends in a clear line. TensorFlow-free.

removed_fields.json holds {benchmark: {field: value}}; "" stands for every benchmark. The program now computes as it did
with this value, which every preset of the benchmark had. A value {"follows": FIELD, "default": DEFAULT, VALUE: value}
depends on the configuration's FIELD; {"either": values} stands for any of them.
"""

import contextlib
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from common.errors import UserError

# Optimizers of earlier versions.
_RULES = ("nadamw", "schedule_free_sgd", "schedule_free_adamw", "muon", "shampoo", "soap")
_PATH = pathlib.Path(__file__).with_name("removed_fields.json")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Returns {benchmark: {field: value}}, with "" for every benchmark."""
    return json.loads(_PATH.read_text(encoding="utf-8"))


def former_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {field: value} of the fields that a benchmark had, for a configuration as `to_dict` returns it."""
    return {path: accepted[0] for path, accepted in _accepted(values).items()}


def _accepted(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns {field: values that mean what the program computes}."""
    fields = {**table()[""], **table().get(str(values.get("benchmark", "")), {})}
    found = {}
    for path, value in fields.items():
        if isinstance(value, Mapping) and "follows" in value:
            value = value.get(str(_at(values, value["follows"], value["default"])))
        found[path] = value["either"] if isinstance(value, Mapping) else [value]
    return found


def _at(values: Mapping[str, Any], path: str, default: Any) -> Any:
    """Returns the value at `path` ("data.contrast"); a group may be a mapping or a dataclass."""
    at: Any = values
    for name in path.split("."):
        at = (at if isinstance(at, Mapping) else getattr(at, "__dict__", {})).get(name)
    return default if at is None else at


def is_constant(values: Mapping[str, Any], path: str, value: str) -> bool:
    """Whether `--config.PATH=VALUE` names a field of an earlier version, with the value that the program computes with.

    `values` is the configuration without the flag, as `to_dict` returns it.

    Raises UserError: it has another value, or is an optimizer of an earlier version.
    """
    if path == "optimizer.name" and value in _RULES:
        raise UserError(
            f"--config.{path}={value}: earlier versions had this rule; take adamw, lamb or a rule of your own"
        )
    if path not in (fields := _accepted(values)):
        return False
    if not any(_means(value, one) for one in fields[path]):
        fix = {
            "first_block_epochs": f"give --config.eval_epochs={value}",
            "first_block_steps": "give --config.eval_epochs=EPOCH",
        }.get(path, "leave it out")
        now = json.dumps(fields[path][0])
        raise UserError(
            f"--config.{path}={value}: earlier versions had this field; it is always {now} now, so {fix}"
        )
    return True


def _means(text: str, value: Any) -> bool:
    """Whether a flag's text is a value: true is 1 too, and a list may stand in brackets or without."""
    if isinstance(value, bool):
        return text.lower() in (("true", "1") if value else ("false", "0"))
    if isinstance(value, list):
        parts = [part.strip() for part in text.strip("[]() ").split(",") if part.strip()]
        return len(parts) == len(value) and all(map(_means, parts, value))
    if isinstance(value, int | float):
        with contextlib.suppress(ValueError):
            return float(text) == value
    return text.lower() == str(value).lower()


def without(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a saved configuration, nested as `to_dict` returns it, without the fields of earlier versions.

    Raises UserError: such a field has another value than the one that the program now computes with.
    """
    values = _with_followed(values)
    fields = _accepted(values)
    optimizer = values.get("optimizer")
    if isinstance(optimizer, Mapping) and (name := optimizer.get("name")) in _RULES:
        raise UserError(
            f"config.optimizer.name={name}: earlier versions had this rule; use the version that wrote this file"
        )
    return _without(_with_eval_epochs(values), fields, "")


def _with_followed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a saved configuration with the fields, "levels" for one, that say what several fields of it said."""
    tables: dict[str, dict[str, Any]] = {}
    for path, value in table().get(str(values.get("benchmark", "")), {}).items():
        if isinstance(value, Mapping) and _at(values, value.get("follows", "benchmark"), None) is None:
            tables.setdefault(value["follows"], {})[path] = value
    for field, fields in tables.items():
        for name in next(iter(fields.values())).keys() - {"follows", "default"}:
            if all(_at(values, path, value[name]) == value[name] for path, value in fields.items()):
                values = {**values, field: name}
                break
    return values


def _with_eval_epochs(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a saved configuration with its first evaluation in `eval_epochs`, if that says it to the step."""
    names = ("first_block_epochs", "first_block_steps", "epochs_per_block", "steps_per_block")
    numbers = [values.get(name, 0) for name in names]
    if not all(isinstance(number, int | float) for number in numbers) or values.get("eval_epochs"):
        return values
    epochs, steps, every, per_block = numbers
    first = epochs or every
    if not first or not every or steps != round(first / every * per_block):
        return values
    left = {name: value for name, value in values.items() if name not in names[:2]}
    return left if first == every else left | {"eval_epochs": [first]}


def _without(values: Mapping[str, Any], fields: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for name, value in values.items():
        path = prefix + name
        if path in fields:
            value = list(value) if isinstance(value, tuple) else value
            if value not in fields[path]:
                raise UserError(
                    f"config.{path}={json.dumps(value)}: earlier versions had this field; it is always "
                    f"{json.dumps(fields[path][0])} now, so use the version that wrote this file"
                )
        else:
            rest = _without(value, fields, f"{path}.") if isinstance(value, Mapping) else value
            if rest or not isinstance(value, Mapping):  # A group may be gone as a whole.
                left[name] = rest
    return left
