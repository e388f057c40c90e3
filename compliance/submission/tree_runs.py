"""Checks the runs of one directory together: benchmark, division, number of runs, seeds, copies."""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path

from common.errors import UserError
from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import nearest
from compliance.log import rules
from compliance.log.check_log import LogResult
from compliance.log.logs import REFUSES, text_of
from compliance.log.stock import PARSER, RCP
from compliance.submission import plausibility, power_files, rcp, rounds, scaling, tree_params
from compliance.submission.runs import Run, RunReader, read_run
from compliance.submission.scaling import factor
from compliance.submission.tree_files import reason_of, unchecked
from compliance.submission.verdict import ResultFolder

# package_checker.py runs the seed checker on closed submissions since 1.0; the rules require seeds since 4.1
# (training_rules.adoc, "Random numbers"). Most published submissions in between log no seeds for some benchmark.
_SEEDS_FROM, _SEEDS_NEEDED_FROM = (1, 0), (4, 1)
# mlcommons/training_policies, pull request 589 (August 2026, for v6.1): reference points come 7 days before the
# deadline, an appeal's evidence with the submission, and comparable past submissions may reject it. The stock tools of
# v6.1 (mlperf_logging 4.1.68) take rcp-bypass as before.
_BYPASS_NARROW_FROM = (6, 1)


def one_folder(
    org: Path,
    path: Path,
    system: str,
    benchmark: str | None,
    group: list[LogResult],
    description: dict | None,
    ruleset: str,
    strict: bool,
) -> tuple[ResultFolder | None, list[Finding]]:
    """Checks the logs of one directory together. Returns (the folder, findings).

    Args:
      path: the directory, as findings show it.
      system: the name of the parent directory.
      benchmark: the benchmark in the directory's name; None if the level of benchmarks is missing.
      group: the results of its logs; at least one.
      description: the system's description; None if there is no usable one.
      strict: True if a finding that refuses a submission is an error, False if it is advice.
    """
    if benchmark is None:
        expected = "results/<system>/<benchmark>/result_<i>.txt"
        return None, [finding("tree.layout", ADVICE, path, expected, str(path)), *same_seed(path, group)]
    bad = ERROR if strict else ADVICE
    flags = tree_params.flags(org, path)
    runs = [_run(one, ruleset, tree_params.BERT_SAMPLES in flags) for one in group]
    division = _division(description, group)
    is_in_round = benchmark in (*rounds.benchmarks(ruleset), *rules.benchmarks(ruleset))
    has_test = is_in_round and rcp.applies(ruleset, benchmark, division)
    convergence = rcp.of_runs(benchmark, ruleset, runs) if has_test else None
    folder = ResultFolder(
        path, system, benchmark, division, ruleset, tuple(one.path for one in group),
        rounds.required_runs(benchmark, ruleset), tuple(one.path for one in group if _fails(one)),
        rounds.may_fail(benchmark), convergence, runs[0].batch if len({one.batch for one in runs}) == 1 else None,
        tuple(runs),
    )  # fmt: skip
    findings = [*_names(path, benchmark, group, ruleset), *_settings(path, runs)]
    findings += _power(folder, bad)
    findings += _count(folder, bad) if is_in_round else ()
    seeded = rounds.number(ruleset) >= _SEEDS_FROM and division == "closed"
    if seeded and is_in_round and tree_params.SEED_BYPASS not in flags:
        findings += seeds(path, runs, bad if rounds.number(ruleset) >= _SEEDS_NEEDED_FROM else ADVICE)
    else:
        findings += same_seed(path, group)
    if is_in_round:
        findings += _stock(group, bad, seeded and tree_params.SEED_BYPASS not in flags, has_test)
    if convergence is not None:
        findings += _about_convergence(path, convergence, bad, tree_params.RCP_BYPASS in flags, ruleset)
    if problem := factor(path, convergence).problem:
        expected = "a scaling_factor of at least the convergence test's own"
        findings.append(finding("tree.scaling", ERROR, path / scaling.NAME, expected, problem))
    if rounds.number(ruleset) >= _SEEDS_FROM:
        findings += plausibility.remarks(path, runs, description, benchmark)
    return folder, findings


def _run(result: LogResult, ruleset: str, bert_samples: bool) -> Run:
    """Returns a log's run, read again if another checker judged it; it is empty if the log cannot be read."""
    if result.run is not None and not bert_samples:
        return result.run
    try:
        return read_run(result.path, ruleset, bert_samples)
    except UserError:  # which is a finding of its own
        return RunReader(result.path, ruleset or "0.7.0").run()


def _power(folder: ResultFolder, severity: str) -> Iterator[Finding]:
    """Checks the names of power logs: as the stock checker does, wrong ones count among the failed runs."""
    place = folder.path / "power"
    if not place.is_dir():
        return
    if names := power_files.bad_names(folder.path, list(folder.paths)):
        refused = len({*names, *folder.failed}) > folder.may_fail
        examples = ", ".join(Path(name).stem for name in names[:4])
        expected = "power/<log>/node_<j>.txt, j from 0"
        actual = f"{len(names)} of {len(folder.paths)} runs: {examples}"
        yield finding("power.files", severity if refused else ADVICE, place, expected, actual[:200])


def _count(folder: ResultFolder, severity: str) -> Iterator[Finding]:
    """Checks how many runs there are, and how many of them have no valid result."""
    runs, failed, most = len(folder.paths), folder.failed, folder.may_fail
    if runs != folder.needed:
        names = {"benchmark": folder.benchmark, "runs": folder.needed}
        yield finding("tree.run-count", severity, folder.path, f"{folder.needed} runs", str(runs), **names)
    if failed:
        expected = f"at most {most} without a valid result"
        actual = f"{len(failed)} of {runs}: {', '.join(Path(one).name for one in failed[:5])}"
        about = (ADVICE, "tree.score.dropped") if folder.dropped else (severity, "")
        yield finding("tree.score", about[0], folder.path, expected, actual, wording=about[1])


def _fails(result: LogResult) -> bool:
    """Whether a run counts for no score: its log has an error, or (under our own rules) it missed its target."""
    own_rules = result.ruleset in ("0.6.0", "0.7.0")
    return not result.passes or (own_rules and not result.met)


def _division(description: dict | None, group: list[LogResult]) -> str:
    """Returns the division in the system's description; if that is not a division, the logs' division."""
    division = description.get("division") if description else None
    if division in rules.DIVISIONS:
        return division
    logged = {result.division for result in group if result.division in rules.DIVISIONS}
    return logged.pop() if len(logged) == 1 else ""


def _names(path: Path, benchmark: str, group: list[LogResult], ruleset: str) -> Iterator[Finding]:
    """Checks that a directory's logs agree with its name and with each other."""
    benchmarks = list(dict.fromkeys([*rules.benchmarks(ruleset), *rounds.benchmarks(ruleset)]))
    if benchmarks and benchmark not in benchmarks:
        near = nearest(benchmark, benchmarks)
        wording = "tree.benchmark-unknown" + (".near" if near else "")
        names = {"wording": wording, "near": near}
        yield finding("tree.benchmark-unknown", ERROR, path, ", ".join(benchmarks), benchmark, **names)
    for one in group:
        if isinstance(one.benchmark, str) and one.benchmark != benchmark:
            actual = one.benchmark[:80]
            yield finding("tree.benchmark", ERROR, one.path, benchmark, actual, benchmark=actual)
    divisions = {result.division for result in group if isinstance(result.division, str)}
    if len(divisions) > 1:
        yield finding("tree.division", ERROR, path, "one division", " and ".join(sorted(divisions))[:200])


def _settings(path: Path, runs: list[Run]) -> Iterator[Finding]:
    """Reports hyperparameters that differ between the runs of a score."""
    for key in sorted({key for one in runs for key in one.hyperparameters}):
        values = Counter(one.hyperparameters.get(key, "nothing") for one in runs)
        if len(values) > 1:
            actual = ", ".join(f"{value} in {count}" for value, count in values.most_common(3))
            expected = f"{key} the same in all runs"
            yield finding("tree.settings", ADVICE, path, expected, actual[:200], key=key)


def seeds(path: Path, runs: list[Run], severity: str) -> Iterator[Finding]:
    """Checks that every run logs a seed, that seeds are whole numbers, and that runs do not share a seed at one place.

    training_rules.adoc, "Random numbers"; mlperf_logging/package_checker/seed_checker.py.
    """
    users: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    without, bad, twice = [], [], []
    for one in runs:
        name = Path(one.path).name
        if not one.seeds and not one.bad_seeds:
            without.append(name)
        bad += [f"{seed} in {name}" for seed in one.bad_seeds[:1]]
        if len(set(one.seeds)) < len(one.seeds):
            twice.append(name)
        for seed in dict.fromkeys(one.seeds):
            users[seed].append(name)
    if without or bad:
        actual = f"none in {', '.join(without[:10])}" if without else ", ".join(bad)[:200]
        expected = "a seed in every log, a whole number"
        yield finding("tree.seed", severity, path, expected, actual, wording="tree.seed.none")
    if twice:
        actual = f"one twice in {', '.join(twice[:10])}"
        yield finding("tree.seed", severity, path, "each seed once in a log", actual)
    pairs = ((text_of(seed), names) for (_, _, seed), names in users.items())
    yield from _shared_seeds(path, pairs, severity)


def _stock(group: list[LogResult], severity: str, seeded: bool, has_test: bool) -> Iterator[Finding]:
    """Reports the lines at which a stock program refuses the folder or ends, of every log, counted or dropped.

    Args:
      seeded: whether the stock seed checker reads the folder. It parses the lines, as the compliance checker does.
      has_test: whether the RCP checker does.
    """
    for one in group:
        for failure in one.stock:
            refuses = failure.effect == REFUSES
            if has_test if failure.program == RCP else seeded or not refuses:
                program = "seed checker" if refuses and failure.program == PARSER else failure.program
                names = {"wording": f"tree.stock.{failure.effect}", "program": program}
                about = "a line that every stock program takes", failure.why
                place = {"line": failure.line, "text": failure.text}
                yield finding("tree.stock", severity, one.path, *about, **place, **names)


def _about_convergence(
    path: Path, convergence: rcp.Convergence, severity: str, bypass: bool, ruleset: str
) -> Iterator[Finding]:
    if convergence.verdict == rcp.PASS:
        return
    bypass = bypass and (convergence.verdict == rcp.NO_REFERENCE or convergence.mean is not None)
    reason = convergence.reason
    if convergence.mean is not None and convergence.least is not None:
        reason += f" (mean {convergence.mean:.6g}, at least {convergence.least:.6g})"
    kinds = {rcp.NO_REFERENCE: "tree.rcp.none", rcp.UNDECIDED: "tree.rcp.undecided"}
    of_kinds = {rcp.UNREAD: "tree.rcp.unread", rcp.NO_BATCH: "tree.rcp.batch"}
    kind = of_kinds.get(convergence.kind) or kinds.get(convergence.verdict, "tree.rcp")
    if bypass:
        reason += "; let through by rcp-bypass"
        kind = "tree.rcp.bypass" if rounds.number(ruleset) >= _BYPASS_NARROW_FROM else kind
    expected = "as many epochs or samples as the reference needs"
    yield finding("tree.rcp", ADVICE if bypass else severity, path, expected, reason, wording=kind)


def duplicates(results: list[LogResult]) -> Iterator[Finding]:
    """Reports logs that are copies of each other, in the same or different directories."""
    by_size: dict[int, list[LogResult]] = defaultdict(list)
    for result in results:
        with suppress(OSError):  # a file that is missing or unreadable has its own finding
            by_size[os.path.getsize(result.path)].append(result)
    by_content: dict[bytes, list[str]] = defaultdict(list)
    for group in by_size.values():
        for result in group if len(group) > 1 else ():
            try:
                with open(result.path, "rb") as file:
                    by_content[file_digest(file, "sha256").digest()].append(result.path)
            except OSError as error:
                if all(one.rule != "not-checked" for one in result.findings):  # otherwise already reported
                    yield unchecked(result.path, "this file", reason_of(error), "make it readable")
    for first, *copies in by_content.values():
        for copy in copies:
            near = Path(first).parent == Path(copy).parent
            actual = f"the bytes of {Path(first).name if near else first}"
            yield finding("tree.duplicate", ADVICE, copy, "one log for each run", actual)


def same_seed(path: Path, group: list[LogResult]) -> Iterator[Finding]:
    """Reports runs in one directory that started from the same seed."""
    users: dict[str, list[str]] = defaultdict(list)
    for result in group:
        if result.seed is not None:
            users[text_of(result.seed)].append(Path(result.path).name)
    yield from _shared_seeds(path, users.items(), ADVICE)


def _shared_seeds(path: Path, users: Iterable[tuple[str, list[str]]], severity: str) -> Iterator[Finding]:
    """Reports the seeds that several logs have, from (seed, names of the logs)."""
    for seed, names in users:
        if len(names) > 1:
            actual = f"seed {seed} in {', '.join(names[:10])}"
            yield finding("tree.seed", severity, path, "a different seed for each run", actual)
