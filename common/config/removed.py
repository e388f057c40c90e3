"""Names the fields of earlier versions, so that a flag or a file with one ends in a clear line. TensorFlow-free.

removed_fields.json holds {benchmark: {field: value}}; "" stands for every benchmark. The program now computes as it did
with this value, which every preset of the benchmark had. A value {"follows": FIELD, "default": DEFAULT, VALUE: value}
depends on the configuration's FIELD, or on several (FIELD,FIELD and VALUE,VALUE); without any VALUE it is FIELD's own.
{"either": values} stands for any of them, {"any": value} for every value, since the field changed no result; presets
had this one.
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
# Fields that say now what several fields said in earlier versions. Of the latter, the oldest files lack _LATER, which
# then had the values of the default.
_SETS = ("network", "implementation", "communication.weight_update")
_LATER = ("geometry", "loss_divisors", "bias_initializer", "data.resize", "data.colours")
_PATH = pathlib.Path(__file__).with_name("removed_fields.json")


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Returns {benchmark: {field: value}}, with "" for every benchmark."""
    return json.loads(_PATH.read_text(encoding="utf-8"))


def former_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {field: value} of the fields that a benchmark had, for a configuration as `to_dict` returns it."""
    return {path: accepted[0] for path, accepted in _accepted(values).items() if accepted}


def _rows(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows of the table for a configuration's benchmark."""
    return {**table()[""], **table().get(str(values.get("benchmark", "")), {})}


def _accepted(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Returns {field: values that mean what the program computes}; none if the field that decides has a new value."""

    def accepted(path: str, row: Any) -> list[Any]:
        if not isinstance(row, Mapping):
            return [row]
        if "any" in row:
            return [_plain(_at(values, path, row["any"]))]
        if "either" in row:
            return row["either"]
        fields, defaults = row["follows"].split(","), str(row["default"]).split(",")
        if len(fields) > 1:
            followed = ",".join(str(_at(values, *pair)) for pair in zip(fields, defaults, strict=True))
        else:
            followed = _at(values, row["follows"], row["default"])
        return [row[name] for name in _names(row) if name == str(followed)] if _names(row) else [followed]

    return {path: accepted(path, row) for path, row in _rows(values).items()}


def _names(row: Mapping[str, Any]) -> list[str]:
    """Returns the values of FIELD that a row which follows it lists."""
    return [name for name in row if name not in ("follows", "default", "either", "any")]


def _now(row: Any) -> str:
    """Returns what decides the value of a former field, from its row of the table."""
    if not isinstance(row, Mapping) or "either" in row:
        always = row["either"][0] if isinstance(row, Mapping) else row
        return f"it is always {json.dumps(always)} now"
    listed = ", ".join(f"{name}: {json.dumps(row[name])}" for name in _names(row)) or "its own value"
    return f"config.{row['follows']} decides it now ({listed})"


def _at(values: Mapping[str, Any], path: str, default: Any) -> Any:
    """Returns the value at `path` ("data.contrast"); a group may be a mapping or a dataclass."""
    at: Any = values
    for name in path.split("."):
        at = (at if isinstance(at, Mapping) else getattr(at, "__dict__", {})).get(name)
    return default if at is None else at


def is_constant(values: Mapping[str, Any], path: str, value: str) -> bool:
    """Whether `--config.PATH=VALUE` names a field of an earlier version, with the value that the program computes with.

    `values` is the configuration without the flag, as `to_dict` returns it.

    Raises UserError if it has another value, or is an optimizer of an earlier version.
    """
    if path == "optimizer.name" and value in _RULES:
        raise UserError(
            f"--config.{path}={value}: earlier versions had this rule; take adamw, lamb or a rule of your own"
        )
    if path not in (fields := _accepted(values)):
        return False
    row = _rows(values)[path]
    if not (isinstance(row, Mapping) and "any" in row) and not any(
        _means(value, one) for one in fields[path]
    ):
        raise UserError(
            f"--config.{path}={value}: earlier versions had this field; {_now(row)}, so {_fix(path, value, row)}"
        )
    return True


def _fix(path: str, value: str, row: Any) -> str:
    """Returns what to do instead of `--config.PATH=VALUE`, a field of an earlier version with its row of the table."""
    if path == "first_block_epochs":
        return f"give --config.eval_epochs={value}"
    if path == "first_block_steps":
        return "give --config.eval_epochs=EPOCH"
    names = [name for name in _names(row) if _means(value, row[name])] if isinstance(row, Mapping) else []
    flags = " or ".join(f"--config.{row['follows']}={name}" for name in names if "," not in name)
    return f"give {flags}" if flags else "leave it out"


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

    Raises UserError if such a field has another value than the one that the program now computes with.
    """
    values = _with_sets(values)
    fields = _accepted(values)
    optimizer = values.get("optimizer")
    if isinstance(optimizer, Mapping) and (name := optimizer.get("name")) in _RULES:
        raise UserError(
            f"config.optimizer.name={name}: earlier versions had this rule; use the version that wrote this file"
        )
    return _without(_with_eval_epochs(values), fields, _rows(values))


def _with_sets(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a saved configuration with the fields of _SETS that its fields of an earlier version stand for.

    A configuration that equals none of a field's sets gets the nearest, so that a message names what differs.
    """
    for field in _SETS:
        rows = {
            path: row
            for path, row in _rows(values).items()
            if isinstance(row, Mapping) and row.get("follows") == field
        }
        paths = [path for path in rows if _at(values, path, None) is not None]
        if paths and _at(values, field, None) is None:
            for path in (path for path in rows if path in _LATER and path not in paths):
                values = _replaced(values, path, rows[path][rows[path]["default"]])
                paths.append(path)
            different = {
                name: sum(_plain(_at(values, path, None)) != rows[path][name] for path in paths)
                for name in _names(rows[paths[0]])
            }
            values = _replaced(values, field, min(different, key=lambda name: different[name]))
    return values


def _replaced(values: Mapping[str, Any], path: str, value: Any) -> Mapping[str, Any]:
    """Returns `values` with the field at `path` ("communication.weight_update")."""
    head, _, rest = path.partition(".")
    return {**values, head: _replaced(values.get(head, {}), rest, value) if rest else value}


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


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
    rest = {name: value for name, value in values.items() if name not in names[:2]}
    return rest if first == every else rest | {"eval_epochs": [first]}


def _without(
    values: Mapping[str, Any], fields: Mapping[str, Any], rows: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    remaining: dict[str, Any] = {}
    for name, value in values.items():
        path = prefix + name
        if path in fields:
            if _plain(value) not in fields[path]:
                raise UserError(
                    f"config.{path}={json.dumps(value)}: earlier versions had this field; {_now(rows[path])}, so use "
                    "the version that wrote this file"
                )
        else:
            rest = _without(value, fields, rows, f"{path}.") if isinstance(value, Mapping) else value
            if rest or not value or not isinstance(value, Mapping):  # All fields of a group may be gone.
                remaining[name] = rest
    return remaining
