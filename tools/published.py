"""Computes tables from the published results: python -m tools.published power|scores|systems|points FOLDER

FOLDER has one folder per round (v0.6, v0.7, v1.0, ..., v5.1), with the submitters' folders of
mlcommons/training_results_<round>.

power: systems/forecast/data/power.csv, the watts of published runs, from `<org>/results/<system>/<benchmark>/power/
result_*/*.txt` of v4.0, v4.1 and v5.0: a file of power_reading lines per node (`node_*.txt`) and per switch
(`sw_*.txt`). A file's watts are the mean of its readings of at least half of its highest, which leaves out idling
before and after the run. A run's watts are the sum of its files, a row's the median of its runs. Nodes count those with
a file; a run whose log lacks nodes of others is left out.

scores: compliance/data/published_scores_later.csv, from rounds v1.0 on: `<org>/results/<system>/<benchmark>/
result_*.txt` (and scaling.json, if the review committee wrote one) and `<org>/systems/<system>.json`. Scores follow
compliance/submission/scores.py: the olympic mean of the runs that say success and reach the round's target, times the
factor in scaling.json. Folders are left out and counted if they have no score, belong to a division other than closed,
or lack a number of accelerators.

systems: compliance/data/published_systems.csv, the fields of `<org>/systems/<system>.json` that say what the
accelerators and hosts are. Files that are not JSON objects are left out and counted.

settings: compliance/data/published_settings.csv, the range of each number that the rules of rounds v2.1 to v5.1 leave
free, by round, benchmark and batch size, in the first log of each closed folder with a score.

points: compliance/data/rcp_origins.csv, who gave each convergence point, and when. FOLDER is a clone of
mlcommons/logging. A point is its benchmark, batch size and runs. `since` is the day on which the main branch first had
it in any round (first parents only, so a pull request counts when it was merged).
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from common.errors import UserError, answering
from common.files import ROOT, write_csv
from compliance.log import rules
from compliance.log.logs import number
from compliance.submission import rounds
from compliance.submission.runs import read_run
from compliance.submission.scores import ScoreCard, result_files, result_folders, score_directory

LATER = ("v1.0", "v1.1", "v2.0", "v2.1", "v3.0", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1")
COPIED = (
    *("system_name", "number_of_nodes", "accelerators_per_node", "accelerator_model_name"),
    *("host_processors_per_node", "host_processor_model_name"),
)
_SCORE_FIELDS = ("n_accelerators", "score_minutes", "global_batch_size", "to_converge")
_DATA = ROOT / "compliance/data"
_WHO = ("round", "org", "system")
_POINTS = re.compile(r"training_[\d.]+/rcps_(\w+)\.json$")


def folders(root: Path, rounds: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yields (round, its folder below `root`). Raises UserError if a round has no folder."""
    for name in rounds:
        if not (root / name).is_dir():
            raise UserError(f"{root / name}: no such folder; it has the files of training_results_{name}")
        yield name, root / name


def power(root: Path, _: Counter) -> Iterator[tuple[str, ...]]:
    """The rows of power.csv, in order."""
    for name, place in folders(root, ROUNDS["power"]):
        for folder in sorted(place.glob("*/results/*/*/power")):
            org, _, system, benchmark = folder.relative_to(place).parts[:4]
            runs = [result for run in sorted(folder.iterdir()) if (result := _run(run))]
            if runs:
                most = max(nodes for nodes, _, _ in runs)
                whole_runs = [run for run in runs if run[0] == most]
                watts, switches = (median(run[i] for run in whole_runs) for i in (1, 2))
                yield name, org, system, benchmark, str(most), f"{watts:.0f}", f"{switches:.0f}"


def _run(folder: Path) -> tuple[int, float, float] | None:
    """(nodes, watts of all nodes, watts of all switches); None if there is no reading."""
    nodes = [watts for path in sorted(folder.glob("node_*.txt")) if (watts := _watts(path))]
    switches = [watts for path in sorted(folder.glob("sw_*.txt")) if (watts := _watts(path))]
    return (len(nodes), sum(nodes), sum(switches)) if nodes else None


def _watts(path: Path) -> float:
    """The mean of a log's readings of at least half of the highest; 0 if it has none."""
    readings = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if '"power_reading"' in line and line.startswith(":::MLLOG "):
            try:
                readings.append(float(json.loads(line.removeprefix(":::MLLOG "))["value"]))
            except (ValueError, TypeError, KeyError):
                continue
    high = [watts for watts in readings if 2 * watts >= max(readings)]
    return fmean(high) if high else 0.0


def scores(root: Path, left_out: Counter) -> Iterator[tuple[str, ...]]:
    """The rows of published_scores_later.csv, in order; `left_out` counts, by reason, the folders that give no row."""
    for name, place in folders(root, ROUNDS["scores"]):
        ruleset = f"{name[1:]}.0"
        for folder in result_folders(place):
            try:
                card = score_directory(folder, ruleset, results=[])
            except UserError:
                left_out["cannot be read"] += 1
                continue
            if reason := _unfit(card, ruleset):
                left_out[reason] += 1
                continue
            org = folder.relative_to(place).parts[0]
            batch = number(card.runs[0].header.get("global_batch_size"))
            yield (
                name, org, card.system, card.benchmark, str(card.accelerators), f"{card.score:.4f}",
                "" if batch is None else f"{batch:.10g}", "" if card.epochs is None else f"{card.epochs:.10g}",
            )  # fmt: skip


def _unfit(card: ScoreCard, ruleset: str) -> str:
    if card.benchmark not in rounds.benchmarks(ruleset):
        return "no benchmark of the round"
    if card.score is None:
        return "no score"
    if any(run.header.get("submission_division") != "closed" for run in card.runs):
        return "not closed"
    return "" if card.accelerators else "no number of accelerators"


def systems(root: Path, left_out: Counter) -> Iterator[tuple[str, ...]]:
    """The rows of published_systems.csv; `left_out` counts the files that are not JSON objects."""
    for name, place in folders(root, ROUNDS["systems"]):
        for path in sorted(place.glob("*/systems/*.json")):
            try:
                description = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
            except ValueError:
                description = None
            if not isinstance(description, dict):
                left_out["no JSON objects"] += 1
                continue
            values = (" ".join(str(description.get(field, "")).split()) for field in COPIED)
            yield (name, path.parts[-3], path.stem, *values)


def settings(root: Path, left_out: Counter) -> Iterator[tuple[str, ...]]:
    """The rows of published_settings.csv, in order; `left_out` counts the folders without a complying first run."""
    for name, place in folders(root, ROUNDS["settings"]):
        ruleset, by_setting = f"{name[1:]}.0", {}
        for folder in result_folders(place):
            try:
                run = read_run(result_files(folder)[0], ruleset)
            except UserError:
                run = None
            if run is None or not run.complies or run.header.get("submission_division") != "closed":
                left_out["no complying first run"] += 1
                continue
            for key, spec in rules.benchmark_section(ruleset, run.benchmark).get("keys", {}).items():
                value = number(run.settings.get(key))
                if value is not None and "equal" not in spec.get("value", {}):
                    by_setting.setdefault((run.benchmark, run.batch, key), []).append(value)
        for (benchmark, batch, key), values in sorted(by_setting.items(), key=str):
            yield (
                name,
                benchmark,
                f"{batch or 0:.10g}",
                key,
                f"{min(values):.6g}",
                f"{max(values):.6g}",
                str(len(values)),
            )


def points(repository: Path, left_out: Counter) -> Iterator[tuple[str, ...]]:
    """The rows of rcp_origins.csv, in order; `left_out` counts the files that are not JSON."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(repository), *words]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"{repository}: no git repository; name a clone of mlcommons/logging")
        return done.stdout

    rows: dict[tuple[str, str, str], tuple[str, ...]] = {}
    folder = "mlperf_logging/rcp_checker"
    log = git("log", "--first-parent", "--reverse", "--format=%h %cs", "HEAD", "--", folder)
    changed = ("diff-tree", "-m", "--first-parent", "-r", "--no-commit-id", "--diff-filter=AM")
    for commit, day in (line.split() for line in log.splitlines()):
        for line in git(*changed, commit, "--", folder).splitlines():
            blob, path = line.split()[3], line.split("\t")[-1]
            if match := _POINTS.search(path):
                try:
                    content = json.loads(git("cat-file", "blob", blob))
                except ValueError:
                    left_out["no JSON"] += 1
                    continue
                for row in points_of(match[1], content):
                    rows.setdefault(row[:3], (*row, day, commit))
    yield from (rows[key] for key in sorted(rows, key=lambda one: (one[0], float(one[1]))))


def points_of(benchmark: str, content: dict[str, dict]) -> Iterator[tuple[str, ...]]:
    """The points of one file: benchmark, batch, sum of the runs, name, and the file's own words."""
    for name, one in content.items():
        runs = next((one[key] for key in one if key.lower().endswith(" to converge")), [])
        facts = (str(one.get(key, "")) for key in ("Creator", "Platform", "When"))
        if runs and one["BS"]:  # One file was a template for a time.
            yield benchmark, f"{one['BS']:g}", f"{sum(runs):.9g}", name, *facts


# Table -> (its rows, its file, its columns); the rounds that it reads.
TABLES: dict[str, tuple[Callable[[Path, Counter], Iterator[tuple[str, ...]]], Path, tuple[str, ...]]] = {
    "power": (
        power, ROOT / "systems/forecast/data/power.csv",
        (*_WHO, "benchmark", "nodes", "node_watts", "switch_watts"),
    ),
    "scores": (scores, _DATA / "published_scores_later.csv", (*_WHO, "benchmark", *_SCORE_FIELDS)),
    "systems": (systems, _DATA / "published_systems.csv", (*_WHO, *COPIED)),
    "settings": (
        settings, _DATA / "published_settings.csv",
        ("round", "benchmark", "batch", "key", "least", "most", "folders"),
    ),
    "points": (
        points, _DATA / "rcp_origins.csv",
        ("benchmark", "batch", "sum", "name", "creator", "platform", "when", "since", "commit"),
    ),
}  # fmt: skip
ROUNDS = {
    "power": ("v4.0", "v4.1", "v5.0"),
    "scores": LATER,
    "settings": LATER[3:],
    "systems": ("v0.6", "v0.7", *LATER),
}


@answering()
def main(arguments: Sequence[str]) -> int:
    """Writes the table and reports what was left out."""
    if len(arguments) != 2 or arguments[0] not in TABLES:
        raise UserError(
            f"give a table ({', '.join(TABLES)}) and a folder: python -m tools.published TABLE FOLDER"
        )
    left_out: Counter = Counter()
    make, target, fields = TABLES[arguments[0]]
    table = list(make(Path(arguments[1]), left_out))
    write_csv(target, fields, table, line_end="\n")
    reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    print(f"Wrote {target.name}: {len(table)} rows; left out: {reasons or 'none'}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
