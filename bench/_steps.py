"""Training steps of one network beside its peers, for transformer_step.py and lstm.py."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from _rounds import ROOT, compare, machine

OURS, TORCH = "ours", "torch"
BAR = 1.1  # Seconds of the best TensorFlow peer over ours, at least.


class Case(NamedTuple):
    """Sequences (GNMT: sentence pairs) of `length` tokens a side in the network of a preset; steps of a round."""

    preset: str
    batch: int
    length: int
    steps: int
    in_pairs: bool = False


def commands(
    script: str, names: Sequence[str], torch_python: str | None, *arguments: str
) -> dict[str, list[str]]:
    """Of the contenders `names` of a script of bench/, and of PyTorch's where an interpreter has it."""
    bench = ROOT / "bench"
    found = {name: [sys.executable, str(bench / script), name, *arguments] for name in names}
    if torch_python:
        found[TORCH] = [torch_python, str(bench / "_torch_translation.py"), *arguments]
    return found


def measure(
    commands: Mapping[str, Sequence[str]], steps: int, rounds: int, in_pairs: bool = False
) -> dict[str, dict[str, Any]]:
    """`compare`, with the seconds of one step.

    `in_pairs` runs each contender with ours alone, for networks of which not all fit into memory at once; the row of a
    contender then has "ours_seconds", those of ours in its own rounds.

    Raises:
      SystemExit: a contender's parameters are not as many as ours, to a thousandth (biases may be held otherwise).
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
    """Who is the best TensorFlow peer, its seconds over ours, PyTorch's over ours; `variants` of ours are no peers."""
    peers = {n: r["ratio_to_ours"] for n, r in rows.items() if n not in (OURS, TORCH, *variants)}
    best = min(peers, key=peers.get)
    return {
        "best_tf_peer": best,
        "best_tf_peer_over_ours": peers[best],
        "bar": BAR,
        "meets_bar": peers[best] >= BAR,
        "torch_over_ours": rows[TORCH]["ratio_to_ours"] if TORCH in rows else None,
    }


def report(case: str, rows: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any]) -> None:
    """Prints a case's rows and its verdict."""
    for name, row in rows.items():
        print(f"{case} {name:16} {1e3 * row['seconds']:9.2f} ms/step, {row['ratio_to_ours']:.3f} x ours")
    said = "met" if found["meets_bar"] else "missed"
    ratio = f"{found['best_tf_peer_over_ours']:.3f}"
    print(
        f"{case} best TensorFlow peer: {found['best_tf_peer']}, {ratio} x ours (bar {BAR}: {said})",
        flush=True,
    )


def about(torch_python: str | None, **settings: Any) -> dict[str, Any]:
    """The head of a result file; says what is left out."""
    missing = [] if torch_python else [TORCH]
    if missing:
        print("left out: torch (give --torch-python)", flush=True)
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "settings": settings,
        "missing_peers": missing,
    }
