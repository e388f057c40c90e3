"""Summarizes submissions as rows of the results table, with the columns of mlperf_logging/result_summarizer.

Each row is one system. Not covered: weak scaling (only HPC has it); energy; remarks say what a row lacks.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from compliance.log.check_log import LogResult
from compliance.submission import rcp, rounds
from compliance.submission.scaling import factor
from compliance.submission.scores import ScoreCard, score_directory
from compliance.submission.tree_system import accelerators, count, load_or_empty
from compliance.submission.verdict import Outcome, ResultFolder, Submission

# _get_strong_scaling_metric_schema. "Energy" stays empty.
_METRICS = ("time_to_train", "Energy", "GBS", "samples_to_converge", "RCP", "rcp_scaling_factor")
_SAME_SCORE = 1e-4  # tables have four decimals
_URL = "https://github.com/mlcommons/training_results_v{round}/blob/{branch}/{submitter}/{rest}"


@dataclass(frozen=True)
class Result:
    """The score of one folder of runs, and its cells in the table."""

    folder: ResultFolder
    card: ScoreCard

    @property
    def rcp(self) -> str:
        """Returns the table's word for the result of the convergence test; "" if there is no test."""
        convergence = self.folder.convergence
        if convergence is None:
            return ""
        if convergence.verdict == rcp.FAIL and convergence.mean is not None:
            return "Interp. Fail" if convergence.kind == "between" else "Fail"
        words = {rcp.PASS: "Pass", rcp.NO_REFERENCE: "Missing", rcp.FAIL: "Unknown state"}
        return words.get(convergence.verdict, "")


@dataclass(frozen=True)
class System:
    """One row: a system's description and its results, by benchmark."""

    submission: Submission
    name: str
    description: dict
    results: dict[str, Result]
    remarks: tuple[str, ...]

    @property
    def accelerators(self) -> int | None:
        return accelerators(self.description)


def systems(outcome: Outcome) -> list[System]:
    """Returns a checked tree's systems, sorted by division, system, accelerator, framework and number."""
    logs: dict[str, LogResult] = {result.path: result for result in outcome.logs}
    rows = [row for one in outcome.submissions for row in _of(one, logs)]

    def order(row: System) -> tuple:
        fields = ("division", "system_name", "accelerator_model_name", "framework")
        return *(str(row.description.get(one, "")) for one in fields), row.accelerators or 0, row.name

    return sorted(rows, key=order)


def _of(submission: Submission, logs: dict[str, LogResult]) -> Iterator[System]:
    by_system: dict[str, list[ResultFolder]] = {}
    for folder in submission.folders:
        by_system.setdefault(folder.system, []).append(folder)
    for name, folders in by_system.items():
        description = load_or_empty(submission.path / "systems" / f"{name}.json")
        results, remarks = {}, []
        for folder in folders:
            results[folder.benchmark] = result = _result(folder, logs)
            if result.card.score is None:
                remarks.append(f"{name}/{folder.benchmark}: no score: {result.card.why}")
            remarks += differs_from_published(submission.path.name, result.card)
        yield System(submission, name, description, results, tuple(remarks))


def differs_from_published(org: str, card: ScoreCard) -> list[str]:
    """Says that the round's table has another score for this folder; [] if it has the same, or none."""
    from compliance.report.published import published_score  # the tables are read only for a score

    published = published_score(card.ruleset, org, card.system, card.benchmark)
    same = published is None or card.score is None or abs(card.score / published - 1) < _SAME_SCORE
    if same or f"{card.score:.4f}" == f"{published:.4f}":
        return []
    scaled = f", with the factor {card.scaling:.4f}" if card.scaling != 1 else ""
    own_score = f"{card.score:.4f} minutes here{scaled}"
    return [f"{card.system}/{card.benchmark}: {own_score}; the round's table has {published:.4f}"]


def _result(folder: ResultFolder, logs: dict[str, LogResult]) -> Result:
    """Scores a folder by the factor that scaling.py decides."""
    scaling = factor(folder.path, folder.convergence).value
    card = score_directory(folder.path, folder.ruleset, [logs[path] for path in folder.paths], scaling)
    if folder.convergence is not None and folder.convergence.kind in (rcp.UNREAD, rcp.NO_BATCH):
        card = replace(card, score=None, why=folder.convergence.reason)  # without its factor
    return Result(folder, card)


def row(system: System, detailed: bool = False) -> dict[str, object]:
    """Returns one system's row by column; an unknown value is None."""
    facts = system.description
    sockets, nodes = count(facts, "host_processors_per_node"), count(facts, "number_of_nodes")
    chips, name = count(facts, "accelerators_per_node"), facts.get("system_name")
    framework = facts.get("framework")
    if isinstance(framework, str) and "TensorFlow" in framework:
        framework = re.sub(r" commit hash = .*", "", framework)  # as _pretty_framework
    model = facts.get("accelerator_model_name")
    place = system.submission.path / "results" / system.name
    private = load_or_empty(place / "privateid.json").get("private_id", "")
    cells: dict[str, object] = {
        "division": facts.get("division"),
        "availability": facts.get("status"),
        "submitter": facts.get("submitter"),
        # _pretty_system_name: "tpu-v3" with its cores
        "system": f"TPUv3.{chips * 2}" if name == "tpu-v3" and chips is not None else name,
        "number_of_nodes": facts.get("number_of_nodes"),
        "host_processor_model_name": facts.get("host_processor_model_name"),
        "host_processors_count": None if sockets is None or nodes is None else sockets * nodes,
        "accelerator_model_name": "TPUv3" if model == "tpu-v3" else model,
        "accelerators_count": system.accelerators,
        "framework": framework,
        "notes": ";".join(str(facts[name]) for name in ("hw_notes", "sw_notes") if facts.get(name)),
        "private_id": str(private),
    }
    for name in rounds.benchmarks(system.submission.ruleset):
        result = system.results.get(name)
        if detailed:
            cells |= zip((f"{name}:{metric}" for metric in _METRICS), _metrics(result))
        else:
            cells[name] = result.card.score if result else None
    cells["details_url"] = _url(system, "main", f"systems/{system.name}.json")
    return cells | {"code_url": _url(system, "master", "benchmarks")}


def _metrics(result: Result | None) -> tuple[object, ...]:
    if result is None:
        return (None,) * len(_METRICS)
    convergence = result.folder.convergence
    batch, mean = (result.folder.batch, convergence.mean) if convergence else (None, None)
    return result.card.score, None, batch, mean, result.rcp, result.card.scaling


def _url(system: System, branch: str, rest: str) -> str:
    """Follows _ruleset_url_prefix: "5.0.0" is v5.0, "5.1.0" is v5.1."""
    short, submitter = system.submission.ruleset[:3], system.description.get("submitter", "")
    return _URL.format(round=short, branch=branch, submitter=submitter, rest=rest)
