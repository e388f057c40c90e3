"""Writes a run's results beside its log: run.json and a picture of the learning curve. TensorFlow-free."""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from common import files, machine_tools
from common.config.digest import digest, to_dict
from common.config.schema import RunConfig
from common.errors import UserError
from timetotrain import figures
from timetotrain.run.history import Record

SCHEMA = 1
_FIX = "free space there or change --result_dir"
_COLORS = ("#1f6fb2", "#2a9d57")  # A run has at most two qualities.
PACKAGES = ("tensorflow", "tf-keras", "numpy", "mlperf-logging", "ml-collections", "absl-py")
PJRT_PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu")


def describe_run(
    config: RunConfig, command: Sequence[str], hardware: dict[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the part of a run.json record that is known before the run starts.

    `facts` contains config_overrides and initial_weights, as in the log's header (timetotrain/run/closed_division.py).
    """
    return {
        "benchmark": config.benchmark,
        "system": config.system,
        "hardware": config.hardware,
        "ruleset": config.ruleset,
        "division": config.division,
        "seed": config.seed,
        "smoke_run": config.smoke_run,
        "quality_target": config.logged_target,
        "command": list(command),
        "config": to_dict(config),
        "digest": digest(config),
        **facts,
        "versions": versions(PJRT_PACKAGES if config.replicas == "pjrt" else ()),
        "git": git_state(),
        "system_description": hardware,
        "implementation": {
            "starting_weights_filename": _starting_weights(facts["initial_weights"]),
            "weight_transformations": config.weight_transformations,
            "weight_data_types": {"fp64": "fp64"}.get(config.precision, "fp32"),
            "input_data_types": config.precision,
            "retraining": "no",
        },
    }


def _starting_weights(weights: Any) -> str:
    if weights == "random":
        return "none, random initialization from the seed"
    return weights["file"] + (f", sha256 {weights['sha256']}" if "sha256" in weights else "")


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Returns the versions of Python, of packages that affect a result, and of `more`; absent ones are left out."""
    return {"python": sys.version.split()[0], **machine_tools.versions(*PACKAGES, *more)}


def git_state() -> dict[str, Any]:
    """Returns the code's commit and whether files differ from it; outside a checkout the commit is empty."""
    unknown = {"commit": "", "dirty": True}
    if files.INSTALLED:  # A repository around an installed package is some other project's.
        return unknown

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(files.ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return unknown


def update_run_json(folder: pathlib.Path, log: pathlib.Path, record: dict[str, Any]) -> pathlib.Path:
    """Adds a run's record to `folder`/run.json, keyed by its log's name.

    Raises UserError if the existing run.json is damaged or of another version, or the folder is not writable.
    """
    path = folder / "run.json"
    sums = {log.name: hashlib.sha256(log.read_bytes()).hexdigest()}
    with files.locked(folder):
        runs = _runs(path)
        runs[log.name] = {**record, "files": sums}
        text = json.dumps({"schema": SCHEMA, "runs": dict(sorted(runs.items()))}, indent=2)
        files.write_atomically(path, text.encode() + b"\n", _FIX)
    return path


def _runs(path: pathlib.Path) -> dict[str, Any]:
    """Returns the records of an existing run.json; {} if there is none."""
    if not path.exists():
        return {}
    try:
        existing = json.loads(path.read_text())
        if existing["schema"] != SCHEMA:
            raise ValueError(f"schema {existing['schema']}")
        return dict(existing["runs"].items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: not a run.json of this version ({error}); move it away") from error


def draw_curve(records: Sequence[Record], config: RunConfig, path: pathlib.Path) -> pathlib.Path:
    """Writes a PNG of a history: quality with its target, and training loss, over minutes of training."""
    os.environ.setdefault("MPLBACKEND", "Agg")
    from matplotlib import pyplot

    parts_of = config.quality.by_name
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    loss_axes = axes.twinx()
    losses = [(r["seconds"] / 60, r["loss"]) for r in records if r["kind"] == "train"]
    if losses:
        loss_axes.plot(*zip(*losses), color="#999999", linewidth=0.8, label="training loss")
    curves: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        for name, part in parts_of(record["value"]).items() if record["kind"] == "evaluation" else ():
            curves.setdefault(name, []).append((record["seconds"] / 60, part))
    for (name, points), color in zip(curves.items(), _COLORS):
        axes.plot(*zip(*points), "o-", color=color, label=name)
    for name, target in ({} if config.logged_target is None else parts_of(config.logged_target)).items():
        axes.axhline(target, color="#c0392b", linestyle="--", linewidth=1, label=f"target of {name}")
    axes.set_zorder(loss_axes.get_zorder() + 1)
    axes.patch.set_visible(False)
    axes.set(xlabel="minutes of training", ylabel=config.quality.name)
    loss_axes.set_ylabel("training loss")
    smoke = ", smoke run" if config.smoke_run else ""
    axes.set_title(f"{config.benchmark} on {config.system}, seed {config.seed}{smoke}")
    lines = [*axes.get_lines(), *loss_axes.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="center right", frameon=False)
    figure.tight_layout()
    figures.write(path, figure, _FIX)
    return path
