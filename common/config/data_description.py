"""Reads and writes DATA_DIR/description.json, in which `timetotrain data` describes the records. TensorFlow-free.

A run reads from it the settings that the data determine: numbers of classes and examples, vocabulary size. So users
need not type them. The run rejects an override that contradicts them. The description is optional.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from common.config import overrides as configs
from common.config.schema import RunConfig
from common.errors import UserError
from common.files import sha256, write_atomically
from common.untrusted import is_plain_name, stays_inside

C = TypeVar("C", bound=RunConfig)
NAME = "description.json"
FORMAT = 1
_MOST_VALUE = 1e300  # Of a baseline, which a run turns into a float.
BACKGROUND = "background"
_COUNTS = ("num_train_examples", "num_eval_examples")  # Fields that the data determine in every benchmark.


@dataclasses.dataclass(frozen=True)
class Description:
    """Describes a folder of records.

    Attributes:
      benchmark: the benchmark that reads the records.
      labels: names of the network's outputs, in order; a detector's first one is BACKGROUND. Empty for text.
      fields: {path of a configuration field: value} that the data fix.
      defaults: {path: value} that suit the data; an override may change them.
      files: {name: [bytes, SHA-256]} of every file that a run reads.
      digest: SHA-256 over the names, sizes and hashes of `files`.
      made_by: the program that wrote the records.
      split: {"train": number, "eval": number} of examples as users count them: images, videos, sentence pairs.
      broken: one line for each source item that was left out.
      baseline: {"value": quality of a trivial answer on the evaluation data, as the run logs it, "what": the answer};
        {} if none is known.
    """

    benchmark: str
    labels: tuple[str, ...]
    fields: Mapping[str, Any]
    defaults: Mapping[str, Any]
    files: Mapping[str, Sequence[Any]]
    digest: str
    made_by: str
    split: Mapping[str, int]
    broken: tuple[str, ...] = ()
    baseline: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_KINDS = {
    "benchmark": str, "labels": list, "fields": dict, "defaults": dict, "files": dict, "digest": str, "made_by": str,
    "split": dict, "broken": list,
}  # fmt: skip


def listed(data_dir: str | os.PathLike, names: Iterable[str]) -> dict[str, list[Any]]:
    """Returns {name: [bytes, SHA-256]} of files in `data_dir`, the form of `Description.files`.

    Raises UserError if a file cannot be read.
    """
    files: dict[str, list[Any]] = {}
    for name in sorted(names):
        path = Path(data_dir, name)
        try:
            files[name] = [path.stat().st_size, sha256(path)]
        except OSError as error:
            raise UserError(f"{path}: cannot read: {error.strerror}; convert the data again") from error
    return files


def digest(files: Mapping[str, Sequence[Any]]) -> str:
    """Returns the SHA-256 over the names, sizes and hashes of `files`, in hexadecimal."""
    lines = "".join(f"{name}\t{files[name][0]}\t{files[name][1]}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def write(data_dir: str | os.PathLike, description: Description) -> Path:
    """Writes the description atomically, as the last step of a conversion; returns its path.

    Raises UserError if the folder cannot be written.
    """
    path = Path(data_dir, NAME)
    content = {"format": FORMAT, **dataclasses.asdict(description)}
    write_atomically(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def begin(data_dir: str | os.PathLike, benchmark: str) -> None:
    """Marks the records in `data_dir` as unfinished; `read` rejects them until `write` describes them.

    Raises UserError if the folder cannot be written.
    """
    content = {"format": FORMAT, "benchmark": benchmark, "unfinished": True}
    write_atomically(Path(data_dir, NAME), json.dumps(content).encode())


def unfinished(data_dir: str | os.PathLike) -> str | None:
    """Returns the benchmark of an interrupted conversion in `data_dir`; None if there is none."""
    try:
        content = json.loads(Path(data_dir, NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return str(content.get("benchmark")) if isinstance(content, dict) and content.get("unfinished") else None


def read(data_dir: str | os.PathLike | None) -> Description | None:
    """Returns the description in `data_dir`; None without a description or folder, or for an object-store address.

    Raises UserError if the description is damaged, of another version or for unfinished records, or a file that it
    lists is missing or has another size.
    """
    if not data_dir or "://" in os.fspath(data_dir):
        return None
    path = Path(data_dir, NAME)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path}: cannot read: {error.strerror}; make it readable") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no JSON ({error}); convert the data again") from error
    description = _checked(path, content)
    _check_files(path, description)
    return description


def _checked(path: Path, content: Any) -> Description:
    again = "convert the data again"
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        version = content.get("format") if isinstance(content, dict) else None
        raise UserError(f"{path}: format {version!r}, this version reads {FORMAT}; {again}")
    if content.get("unfinished"):
        fix = "give the same `timetotrain data` command again"
        raise UserError(f"{path}: the conversion has not finished; {fix}")
    for name, kind in _KINDS.items():
        if not isinstance(content.get(name), kind):
            what = {str: "a text", list: "a list", dict: "an object"}[kind]
            raise UserError(f"{path}: {name} is {content.get(name)!r}, not {what}; {again}")
    for name in ("labels", "broken"):
        wrong = [value for value in content[name] if not isinstance(value, str)]
        if wrong:
            raise UserError(f"{path}: {name} holds {wrong[0]!r}, not a text; {again}")
    values = {name: tuple(content[name]) if kind is list else content[name] for name, kind in _KINDS.items()}
    description = Description(**values, baseline=_checked_baseline(content.get("baseline")))
    try:
        sound = digest(description.files) == description.digest
    except (TypeError, IndexError, KeyError):
        sound = False
    if not sound:
        raise UserError(f"{path}: digest does not belong to its files; {again}")
    for name, entry in description.files.items():
        pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int)
        if not pair or not is_plain_name(name):
            raise UserError(f"{path}: files holds {name[:80]!r}, which is not a file of this folder; {again}")
    return description


def _checked_baseline(baseline: Any) -> Mapping[str, Any]:
    """Returns a baseline of numbers, or {} if there is none; a run only shows it."""
    if not isinstance(baseline, dict) or not isinstance(baseline.get("what"), str):
        return {}
    value = baseline.get("value")
    numbers = list(value.values() if isinstance(value, dict) else [value])
    plain = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    sound = bool(numbers) and plain and all(abs(n) < _MOST_VALUE for n in numbers)
    return {"value": value, "what": baseline["what"]} if sound else {}


def _check_files(path: Path, description: Description) -> None:
    for name, (size, _) in description.files.items():
        file = path.with_name(name)
        try:
            size_here = file.stat().st_size
        except OSError as error:
            problem = f"{NAME} names it, but {error.strerror}"
            raise UserError(f"{file}: {problem}; convert the data again") from error
        if size_here != size:
            raise UserError(f"{file}: has {size_here} bytes, {NAME} says {size}; convert the data again")


def apply(config: C, description: Description, overrides: Sequence[tuple[str, str]] = ()) -> C:
    """Returns `config` with the fields that the data determine, validated.

    Raises UserError if the data belong to another benchmark, an override contradicts them, or the description names a
    field that the configuration does not have.

    Args:
      config: preset with overrides applied.
      overrides: the overrides, [(path, value)], from `overrides.split_overrides`.
    """
    check_fields(config, description)
    typed = {path for path, _ in overrides}
    for path, value in description.defaults.items():
        if path not in typed:
            config = _set(config, path, value)
    for path, value in description.fields.items():
        filled = _set(config, path, value)
        if path in typed and filled != config:
            problem = f"contradicts the data, whose {NAME} says {value}"
            raise UserError(f"--config.{path}={dict(overrides)[path]} {problem}; leave it out")
        config = filled
    config.validate()
    return config


def check_fields(config: RunConfig, description: Description) -> None:
    """Rejects unsuitable data.

    Raises UserError if the data belong to another benchmark or have fields that the configuration does not have.
    """
    if config.benchmark != description.benchmark:
        raise UserError(
            f"--data_dir: its {NAME} says that the data are for {description.benchmark}, not for {config.benchmark}; "
            f"run {description.benchmark}, or convert them with `timetotrain data {config.benchmark}`"
        )
    for path, value in {**description.defaults, **description.fields}.items():
        _set(config, path, value)


def _set(config: C, path: str, value: Any) -> C:
    """Sets a field that describes the data; rejects fields that choose a run's code or files."""
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    try:
        filled = configs.override(config, path, text)
    except UserError as error:
        raise UserError(f"{NAME} in --data_dir: {error}; convert the data again") from error
    top = path.partition(".")[0]
    shared = top in {field.name for field in dataclasses.fields(RunConfig)} - set(_COUNTS)
    wrong = ""
    if shared or path == config.weights_field or filled.plugin_functions() != config.plugin_functions():
        wrong = f"sets config.{path}, which data do not decide"
    elif top == "data" and isinstance(value, str) and not stays_inside(value):
        wrong = f"config.{path}={value[:80]!r} leaves the folder"
    if wrong:
        raise UserError(f"{NAME} in --data_dir: {wrong}; convert the data again")
    return filled


def filled(config: C, data_dir: str | os.PathLike | None, overrides: Sequence[tuple[str, str]] = ()) -> C:
    """Returns `config` with the settings from the description in `data_dir`; unchanged if there is none.

    Raises UserError as `read` and `apply` do.
    """
    description = read(data_dir)
    return apply(config, description, overrides) if description else config
