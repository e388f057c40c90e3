"""Our exported steps on the card: compiles them, compares losses and weights with the export's, and times them."""

import statistics
from pathlib import Path
from typing import Any

from common.distributed import pjrt_program
from common.export import rules
from lab.bench.gpu.child import Hits, Turn, jax_of
from lab.bench.programs import figures
from lab.bench.programs.replayed import Replay
from lab.bench.replay import read
from systems.compile import hlo, launches


class Prepared(Replay):
    """A replay that makes its arguments' first values before it compiles, so that the card never waits for them."""

    def __init__(self, folder: Path, manifest: dict, program: dict, values: bool = True):
        import numpy as np

        stored = np.load(folder / "arrays.npz")
        about = {a["name"]: a for a in [*manifest["state"], *manifest["constants"], *program["inputs"]]}
        self._values = {
            a["name"]: rules.make(
                about[a["name"]]["rule"], about[a["name"]]["shape"], about[a["name"]]["dtype"], stored
            )
            for a in program["arguments"]
            if values
        }
        self._start = folder, manifest, program

    def compile(self) -> None:
        """Compiles the program or takes it from jax's cache."""
        super().__init__(*self._start)

    def reset(self) -> None:
        """Does nothing; `place` does the work, because the job must not use the card's memory while it compiles."""

    def place(self) -> None:
        """Puts the arguments' first values on the card."""
        super().reset()

    def _first(self, name: str, replica: int = 0) -> Any:
        return self._values[name]


def _programs(job: dict) -> tuple[Path, dict, list[dict]]:
    folder = Path(job["export"])
    manifest = read(folder)
    return folder, manifest, [p for p in manifest["programs"] if p["kind"] == "train"]


def compile(job: dict, turn: Turn) -> dict[str, Any]:  # noqa: A001, the job's name
    """Compiles a step into jax's cache, possibly beside other compiling jobs; returns what it launches and moves."""
    jax_of(job)
    folder, manifest, (program, *_) = _programs(job)
    made, hits = Prepared(folder, manifest, program, values=False), Hits()
    with turn.together():
        made.compile()
    return {
        "compile_seconds": made.compile_seconds,
        "from_cache": hits.count > 0,
        **launches.launches(hlo.Program(made.compiled.as_text())),
    }


def check(job: dict, turn: Turn) -> dict[str, Any]:
    """Compares three steps' losses and the state after the first with the export's, judged as in lab.bench.replay."""
    jax_of(job)
    folder, manifest, programs = _programs(job)
    found: dict[str, Any] = {"precision": manifest["precision"], "programs": []}
    for program in programs:
        made = Prepared(folder, manifest, program)
        with turn.together():
            made.compile()
            made.place()
            report = {"program": program["name"], "chooses": manifest["chooses"], **made.check()}
        report["differs"] = figures.verdict(report, manifest["precision"], False, None)
        found["programs"].append(report)
    found["equal"] = not any(report["differs"] for report in found["programs"])
    for what in ("state_error", "change_error"):
        found[what] = max((r[what] for r in found["programs"]), key=lambda error: error["relative"])
    found["loss_error"] = max(max(report["loss_errors"]) for report in found["programs"])
    return found


def step(job: dict, turn: Turn) -> dict[str, Any]:
    """Measures the milliseconds of a step, memory and bytes of its compiled program, losses of the first steps.

    `compile_alone` in the job: compile without a cache, while no other job uses the card.
    """
    jax = jax_of(job)
    folder, manifest, (program, *_) = _programs(job)
    made, hits = Prepared(folder, manifest, program), Hits()
    alone = job.get("compile_alone", False)
    if not alone:
        with turn.together():
            made.compile()
    with turn.alone():
        if alone:
            made.compile()
        made.place()
        losses = [float(pjrt_program.first(made.step()[0])) for _ in range(3)]
        seconds = _timed(made, job)
        found = figures.speed(made, seconds, figures.peak_of(jax.devices()[0], manifest["precision"]))
    return {
        "network": manifest["benchmark"],
        "batch": manifest["batch"]["train"],
        "precision": manifest["precision"],
        "losses": losses,
        **found,
        "from_cache": hits.count > 0,
        "compiled_alone": alone,
        "spread": (max(seconds) - min(seconds)) / statistics.median(seconds),
    }


def _timed(made: Replay, job: dict) -> list[float]:
    """Returns the seconds per step in each round; a round has as many steps as `seconds_of_round` allows."""
    (one,) = made.time(1, 1, 2)
    steps = max(2, min(job.get("steps", 20), int(job.get("seconds_of_round", 1.5) / one)))
    return made.time(2, job.get("rounds", 3), steps)
