"""Compares training steps of one network with its peers': configurations, commands, seconds per step, verdict."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from common.config.digest import to_dict
from common.config.schema import RunConfig, Schedule
from lab.bench.harness.interpreters import left_out
from lab.bench.harness.results import head
from lab.bench.harness.rounds import OURS, command, compare

TORCH = "torch"
BAR = 1.1  # Minimum ratio of the best TensorFlow peer's seconds to ours.
Config = TypeVar("Config", bound=RunConfig)


class Case(NamedTuple):
    """A preset's network, its batch of sequences (GNMT: sentence pairs), `length` tokens per side, steps per round."""

    preset: str
    batch: int
    length: int
    steps: int
    in_pairs: bool = False


def on_one_replica(preset: Config, batch: int, precision: str = "fp32", **changes: Any) -> Config:
    """Returns a preset's network on one replica, with `batch` examples per batch and a constant rate."""
    return dataclasses.replace(
        preset,
        division="open",
        replicas="single",
        num_replicas=1,
        precision=precision,
        global_batch_size=batch,
        eval_batch_size=batch,
        schedule=Schedule(kind="constant", warmup_epochs=0),
        **changes,
    )


def manifest(config: RunConfig, **more: Any) -> str:
    """Returns what a contender needs to know as JSON: the keys of an export's manifest that contenders read."""
    told = {"config": to_dict(config), "batch": {"train": config.global_batch_size}}
    return json.dumps({**told, "precision": config.precision, **more})


def commands(
    module: str, names: Sequence[str], torch_module: str, torch_python: str | None, *arguments: str
) -> dict[str, list[str]]:
    """Returns the commands of one module's contenders `names`, and of PyTorch's if there is an interpreter for it."""
    found = {name: command(module, name, *arguments) for name in names}
    if torch_python:
        found[TORCH] = command(torch_module, *arguments, python=torch_python)
    return found


def measure(
    commands: Mapping[str, Sequence[str]], steps: int, rounds: int, in_pairs: bool = False
) -> dict[str, dict[str, Any]]:
    """Runs `compare` and converts times to seconds per step.

    `in_pairs` runs each contender only with ours, for networks that do not all fit in memory at once. A contender's row
    then has "ours_seconds", the seconds of ours in the same rounds.

    Raises:
      SystemExit: a contender's parameter count differs from ours by over 0.1 % (biases may be stored differently).
    """
    if not in_pairs:
        rows = compare(commands, steps, rounds)
    else:
        rows = {}
        for name in commands:
            if name != OURS:
                found = compare({OURS: commands[OURS], name: commands[name]}, steps, rounds)
                rows.setdefault(OURS, found[OURS])
                rows[name] = found[name] | {"ours_seconds": found[OURS]["seconds"] / steps}
    own = rows[OURS].get("parameters")
    for name, row in rows.items():
        if own and abs(row["parameters"] / own - 1) > 1e-3:
            sys.exit(f"{name}: {row['parameters']} parameters, ours has {own}: not the same network")
        row["seconds"] /= steps
        row["rounds_seconds"] = [round(t / steps, 5) for t in row["rounds_seconds"]]
    return rows


def verdict(rows: Mapping[str, Mapping[str, Any]], variants: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the best TensorFlow peer, its seconds over ours, PyTorch's over ours; our `variants` are not peers."""
    peers = {n: r["ratio_to_ours"] for n, r in rows.items() if n not in (OURS, TORCH, *variants)}
    best = min(peers, key=peers.get)
    return {
        "best_tf_peer": best,
        "best_tf_peer_over_ours": peers[best],
        "bar": BAR,
        "meets_bar": peers[best] >= BAR,
        "torch_over_ours": rows[TORCH]["ratio_to_ours"] if TORCH in rows else None,
    }


def judged(name: str, rows: Mapping[str, Mapping[str, Any]], variants: Sequence[str] = ()) -> dict[str, Any]:
    """Prints the rows and their `verdict` under the name of the case; returns both."""
    found = verdict(rows, variants)
    for contender, row in rows.items():
        print(f"{name} {contender:16} {1e3 * row['seconds']:9.2f} ms/step, {row['ratio_to_ours']:.3f} x ours")
    said = "met" if found["meets_bar"] else "missed"
    best = f"{found['best_tf_peer']}, {found['best_tf_peer_over_ours']:.3f} x ours"
    print(f"{name} best TensorFlow peer: {best} (bar {BAR}: {said})", flush=True)
    return {"contenders": rows, **found}


def measure_case(
    name: str, case: Case, called: Mapping[str, Sequence[str]], rounds: int, variants: Sequence[str] = ()
) -> dict[str, Any]:
    """Returns a case's settings, rows with tokens per second, and verdict; our `variants` are not peers."""
    rows = measure(called, case.steps, rounds, case.in_pairs)
    for row in rows.values():
        row["target_tokens_per_second"] = case.batch * case.length / row["seconds"]
    return {"settings": case._asdict(), **judged(name, rows, variants)}


def about(torch_python: str | None, **settings: Any) -> dict[str, Any]:
    """Returns the header of a result file; prints which peers are left out."""
    interpreters = {TORCH: torch_python} if torch_python else {}
    missing = left_out(interpreters, [TORCH], decisive=False)
    return {**head(), "settings": settings, "missing_peers": missing}
