"""Counts what the checker says of published folders of runs: refusals beside the stock checker's, and advice by kind.

`python -m lab.bench.compliance_alarms FOLDER [--folders N] [-o FILE]`: FOLDER holds training_results_vX.Y/SUBMITTER/
{results,systems}. It judges N folders, chosen at random with a fixed seed and with as many of each round as there are,
log by log and as folders. A log that the stock checker passes and ours refuses is a false refusal. Advice on a
published folder is an alarm: some are true (an evaluation at half the frequency of the rules), all are counted.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from compliance.findings import ERROR, Finding
from compliance.log.check_log import check_log
from compliance.submission.facts import read_facts
from compliance.submission.plausibility import remarks
from lab.bench.compliance_published import logs
from lab.bench.harness import scripts, stock_checker
from lab.bench.harness.scripts import RESULTS, head, write


def choose(folder: Path, count: int) -> list[tuple[Path, str]]:
    """Returns (folder of runs, round) of `count` folders, an equal part of each round."""
    rounds: dict[str, set[Path]] = defaultdict(set)
    for path, name in logs(folder):
        rounds[name].add(Path(path).parent)
    chosen, pick = [], random.Random(50)
    for place, name in enumerate(sorted(rounds)):
        share = (count - len(chosen)) // (len(rounds) - place)
        among = sorted(rounds[name])
        chosen += [(one, name) for one in sorted(pick.sample(among, min(share, len(among))))]
    return chosen


def judge(place: Path, name: str) -> tuple[list[Finding], int, list[str]]:
    """Returns (findings, number of logs, false refusals) of one folder."""
    ruleset, findings, false = f"{name}.0", [], []
    paths = sorted(map(str, place.glob("result_*.txt")))
    for path in paths:
        ours = check_log(path, ruleset)
        findings += ours.findings
        if not ours.passes:
            theirs, _ = stock_checker.verdict(path, ruleset, 60, stock_checker.config(path, ruleset))
            false += [path] if theirs == "pass" else []
    findings += remarks(place, [read_facts(path, ruleset) for path in paths], None, place.name)
    return findings, len(paths), false


def main() -> None:
    """Judges the folders, prints the counts and writes the result file."""
    parser = scripts.parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="the folder with training_results_v1.0 ... v6.0")
    parser.add_argument("--folders", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "compliance_alarms.json")
    options = parser.parse_args()
    if options.folder is None:  # `make bench` runs every script.
        print("nothing to judge: name the folder with the published logs")
        return
    stock_checker.make_fast()
    kinds: dict[str, dict] = defaultdict(lambda: {"folders": 0, "logs": 0, "example": ""})
    rounds, every, refused = Counter(), 0, []
    for place, name in tqdm(choose(options.folder, options.folders), unit=" folders", mininterval=10):
        findings, number, false = judge(place, name)
        rounds[name] += 1
        every += number
        refused += [str(Path(path).relative_to(options.folder)) for path in false]
        for rule, times in Counter(one.rule for one in findings if one.severity != ERROR).items():
            kinds[rule]["folders"] += 1
            kinds[rule]["logs"] += times
            first = next(one for one in findings if one.rule == rule)
            kinds[rule]["example"] = kinds[rule]["example"] or f"{first.expected}; found {first.found}"[:200]
    ordered = dict(sorted(kinds.items(), key=lambda item: -item[1]["folders"]))
    for rule, counts in ordered.items():
        print(f"{counts['folders']:4} folders {counts['logs']:5} logs  {rule}  {counts['example'][:90]}")
    print(f"{sum(rounds.values())} folders, {every} logs; false refusals: {refused or 'none'}")
    about = {**head(), "mlperf_logging": version("mlperf-logging"), "folders": dict(rounds), "logs": every}
    write({**about, "false_refusals": refused, "advice": ordered}, options.output)


if __name__ == "__main__":
    main()
