"""Compares the settings that a log shows with the configuration file that it names, in the submitted code.

mlcommons/training #880 (rounds 6.0 and later): the file that `config_filename` names is to be found in the code.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from compliance.code import config_files
from compliance.code.config_files import Values
from compliance.log.logs import numeral
from compliance.submission.runs import Run
from compliance.submission.tree_files import walk

SAME, DIFFERENT, NOT_FOUND = "same", "different", "not found"

# Key of a log -> the names that configurations of published submissions use for it (training_results_v5.1 and v6.0:
# Megatron, NeMo, Primus, torchtitan and NVIDIA's scripts), without the prefixes below.
NAMES: dict[str, tuple[str, ...]] = {
    "global_batch_size": ("global_batch_size", "gbs", "total_batch_size"),
    "micro_batch_size": ("micro_batch_size", "mbs"),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches"),
    "opt_base_learning_rate": ("lr", "learning_rate", "base_lr", "base_learning_rate", "peak_lr", "max_lr"),
    "opt_end_learning_rate": ("min_lr", "lr_min", "end_lr", "end_learning_rate"),
    "opt_learning_rate_warmup_steps": (
        "warmup_steps", "lr_warmup_steps", "lr_warmup_iters", "warmup_iters", "num_warmup_steps", "warmup",
        "learning_rate_warmup_steps",
    ),
    "max_steps": ("max_steps", "train_iters", "max_train_steps"),
    "tensor_parallelism": (
        "tp", "tensor_parallel", "tensor_model_parallel", "tensor_model_parallel_size", "tensor_parallel_size",
        "tensor_parallel_degree",
    ),
    "pipeline_parallelism": (
        "pp", "pipeline_parallel", "pipeline_model_parallel", "pipeline_model_parallel_size", "pipeline_parallel_size",
        "pipeline_parallel_degree",
    ),
    "context_parallelism": ("cp", "context_parallel", "context_parallel_size", "context_parallel_degree"),
    "expert_parallelism": (
        "ep", "expert_parallel", "expert_model_parallel", "expert_model_parallel_size", "expert_parallel_degree",
    ),
}  # fmt: skip
_PREFIXES = ("", "primus_", "mllog_", "opt_", "config_", "train_")
_MAX_FILES = 100_000
_MAX_SOURCED = 40


@dataclass(frozen=True)
class Setting:
    """One setting of a log: its value there, the file's values as text, and SAME, DIFFERENT or NOT_FOUND."""

    name: str
    logged: object
    values: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Agreement:
    """What one log says and its configuration. `file` is None if the tree has no file of this name.

    `problem` says why the file could not be read; `elsewhere`: the file is in the code of another benchmark.
    """

    named: str
    file: Path | None
    kind: str
    settings: tuple[Setting, ...]
    problem: str = ""
    elsewhere: bool = False


def files(code: Path) -> dict[str, list[Path]]:
    """Returns {name: paths} of every configuration file below a folder of code; none of a link to a folder."""
    paths: dict[str, list[Path]] = {}
    every = () if code.is_symlink() else ((place, name) for place, names in walk(code) for name in names)
    for place, name in islice(every, _MAX_FILES):
        if config_files.kind(Path(name)) or name.endswith(".py"):
            paths.setdefault(name, []).append(Path(place, name))
    return paths


def compare(
    said: Mapping[str, object], benchmark: str, system: str, code: Mapping[str, list[Path]]
) -> Agreement | None:
    """Compares a log's header with the file it names; None if it names none.

    Args:
      said: the log's settings.
      benchmark, system: the folders that hold the log.
      code: the submitter's configuration files, as `files` returns them.
    """
    named = said.get("config_filename")
    if not isinstance(named, str) or not named.strip():
        return None
    base = named.strip().replace("\\", "/").rpartition("/")[2]
    candidates = code.get(base, [])
    own = [path for path in candidates if benchmark in path.parts] or candidates
    own = [path for path in own if system in path.parts] or own
    if not own:
        return Agreement(named, None, "", ())
    elsewhere = benchmark not in own[0].parts
    # The same name may be in several folders: the one that agrees best is taken.
    return min((_one(path, named, said, code, elsewhere) for path in own), key=wrong)


def wrong(one: Agreement) -> int:
    """Returns how far a file is from its log: 0 if no setting differs and it could be read."""
    return sum(setting.answer == DIFFERENT for setting in one.settings) + 1000 * bool(one.problem)


def _one(
    path: Path, named: str, said: Mapping[str, object], code: Mapping[str, list[Path]], elsewhere: bool
) -> Agreement:
    kind = config_files.kind(path)
    if not kind:
        return Agreement(named, path, path.suffix, (), "", elsewhere)
    try:
        values = _values(path, code)
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return Agreement(named, path, kind, (), problem.splitlines()[0][:120], elsewhere)
    settings = tuple(_setting(name, said[name], values) for name in NAMES if name in said)
    return Agreement(named, path, kind, settings, "", elsewhere)


def _values(path: Path, code: Mapping[str, list[Path]]) -> Values:
    """Returns the values of a file and of the files that it names; its own assignments override theirs."""
    if config_files.kind(path) != "shell":
        return config_files.read(path)
    near: Values = {}
    later: list[Path] = []
    for name in config_files.sources(path)[:_MAX_SOURCED]:
        beside = [one for one in code.get(name, []) if one != path]
        beside.sort(key=lambda one: len(os.path.commonpath([one, path])), reverse=True)
        if not beside:
            continue
        if config_files.kind(beside[0]) == "shell":
            near |= _quietly(beside[0], near)
        else:
            later.append(beside[0])
    values = near | config_files.read(path, near)
    for one in later:
        values = _quietly(one, values) | values
    return values


def _quietly(path: Path, known: Values) -> Values:
    try:
        return config_files.read(path, known)
    except (OSError, ValueError):
        return {}


def _setting(name: str, logged: object, values: Values) -> Setting:
    words = [prefix + word for word in (*NAMES[name], name) for prefix in _PREFIXES]
    texts = tuple(dict.fromkeys(text for word in words for text in values.get(word, ())))
    numbers = tuple(text for text in texts if numeral(text) is not None)
    number = numeral(logged)
    if not numbers or number is None:
        return Setting(name, logged, numbers, NOT_FOUND)
    if any(math.isclose(numeral(text), number, rel_tol=1e-9) for text in numbers):
        return Setting(name, logged, numbers, SAME)
    # Another value is none if a program's output may override it.
    return Setting(name, logged, numbers, NOT_FOUND if "" in texts else DIFFERENT)


def of_tree(org: Path, folders: Mapping[Path, Sequence[Run]]) -> Iterator[tuple[Path, list[Path], Agreement]]:
    """Yields (folder of runs, logs that name the file, agreement) for each file that the runs of a folder name."""
    code = files(org / "benchmarks")
    for folder, runs in folders.items():
        groups: dict[str, list[Run]] = {}
        for run in runs:
            groups.setdefault(str(run.settings.get("config_filename", "")), []).append(run)
        for group in groups.values():
            place = folder.name, folder.parent.name
            agreements = (compare(run.header | run.settings, *place, code) for run in group)
            worst = max((one for one in agreements if one), key=wrong, default=None)
            if worst is not None:
                yield folder, [run.path for run in group], worst
