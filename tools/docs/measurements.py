"""Turns lab/bench/results/*.json into table rows: this project's time, and each peer's time in the same run."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "lab/bench/results"
# {peer's name in the files: its name in the tables}.
PEERS = {
    "tf_models": "tf-models",
    "official": "tf-models",
    "keras_fit": "Keras `fit`",
    "keras_tuned": "Keras `fit`, loops written out, legacy Adam",
    "torch": "PyTorch",
    "jax": "JAX",
}
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`ratio` is the peer's time divided by ours in the same run (above 1, ours is faster); `goal` is its minimum."""

    case: str
    ours: str
    peer: str
    ratio: float
    goal: float | None
    file: str

    @property
    def goal_text(self) -> str:
        return "" if self.goal is None else f"{self.goal:.2f}"

    @property
    def verdict(self) -> str:
        return "" if self.goal is None else "met" if self.ratio >= self.goal else "missed"


@dataclasses.dataclass(frozen=True)
class Limit:
    """A measurement and its bound."""

    case: str
    measured: str
    goal: str
    is_met: bool
    file: str


def load(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def steps(table: str) -> Iterator[Comparison]:
    """Yields rows of lab/bench/steps.py: its training steps, or its small networks."""
    file = "steps.json"
    for case in load(file)["cases"].values():
        if case["table"] == table:
            for key, row in case["contenders"].items():
                if key in PEERS:
                    figures = PEERS[key], row["ratio_to_ours"], row.get("bar")
                    yield Comparison(case["title"], _figure(case), *figures, file)


def _figure(case: dict[str, Any]) -> str:
    seconds = case["contenders"]["ours"]["seconds"]
    value = seconds * case["examples"] if case["unit"].startswith("s") else case["examples"] / seconds
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f} {case['unit']}"


def comparisons() -> Iterator[Comparison]:
    """Yields the rows of every comparison with a peer."""
    for table in ("training", "small"):
        yield from steps(table)


def limits() -> Iterator[Limit]:
    """Yields the measurements that have a bound."""
    loop = load("steps.json")["fused_loop"]
    over, bar = loop["overhead"], loop["bar"]
    text = "the fused loop beyond the bare step, 64 pixels, batch 32"
    yield Limit(text, f"{over:+.1%}", f"at most {bar:.0%}", over <= bar, "steps.json")
    rows = load("compliance.json")["rows"]
    name = next(name for name in rows if name.endswith("v0.7 logs"))
    ours, stock = (rows[name][side]["seconds"] for side in ("ours", "stock"))
    title = f"`timetotrain check` of {name} on two cores (stock checker: {stock:.1f} s)"
    yield Limit(title, f"{ours:.1f} s", "10 s", ours <= 10, "compliance.json")
    for name, part in {"1000 published v5.0 logs": 0.1, "one published v5.0 log from the shell": 1.0}.items():
        if name in rows:
            ours, stock = (rows[name][side]["seconds"] for side in ("ours", "stock"))
            title = f"`timetotrain check` of {name}, time over the stock checker's ({stock:.2f} s)"
            goal = f"at most {part:.2f}"
            yield Limit(title, f"{ours / stock:.2f}", goal, ours <= part * stock, "compliance.json")


def machines(path: Path) -> list[tuple[str, ...]]:
    """(date, processor, its fastest instruction set, cores) of a file's runs; files of older scripts lack some."""
    file = load(path.name)
    runs = [file] if "date" in file or "machine" in file else file["cases"].values()
    return list(dict.fromkeys(map(_machine, runs)))


def _machine(run: dict[str, Any]) -> tuple[str, ...]:
    machine = run.get("machine", {})
    processor = machine.get("cpu") or machine.get("processor") or "not recorded"
    cores = machine.get("cores") or machine.get("cpus") or ""
    return str(run.get("date") or ""), str(processor), str(machine.get("instructions") or ""), str(cores)
