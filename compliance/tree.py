"""Checks of directories: what logs, their places, system descriptions and the files around them say together.

The layout is that of the rules (mlcommons/policies, submission_rules, 2020):
`<org>/results/<system>/<benchmark>/result_<i>.txt`, `<org>/systems/<system>.json`, and below
`<org>/benchmarks/<benchmark>/` a directory of the system, beside `implementations/` or inside it (both were
published), with the scripts, the README and `<system>_<implementation>.json`.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

from compliance import rules
from compliance.check import LogResult, check_logs
from compliance.findings import ADVICE, ERROR, Finding
from compliance.hints import nearest
from compliance.logs import TOKEN, shown

_RESULT = re.compile(r"result_.*\.txt")
_LOG_SUFFIXES = (".txt", ".log", ".out")
_SCRIPTS = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")
_MAX_JSON_BYTES = 1 << 20


def check_tree(
    root: Path, ruleset: str | None, division: str | None
) -> tuple[list[str], list[LogResult], list[Finding]]:
    """(files looked at, results of the logs, findings about the tree) of everything below `root`."""
    logs, findings = _find_logs(root)
    results = check_logs(logs, ruleset, division)
    if not logs:
        findings.append(_finding("tree.empty", ERROR, root, "There is no log below this directory.", "result_*.txt",
                                 "none", "name the directory that holds results/, or a log"))  # fmt: skip
    groups: dict[tuple[Path, Path], list[LogResult]] = defaultdict(list)
    for result in results:
        directory = Path(os.path.abspath(result.path)).parent
        groups[directory, Path(result.path).parent].append(result)
    orgs: dict[Path, set[str]] = defaultdict(set)
    descriptions: dict[Path, dict | None] = {}
    for (directory, shown_as), group in groups.items():
        place = _place(directory)
        if place is None:
            if len(group) > 1:
                findings += _duplicates(group)
            continue
        org, system, benchmark = place
        findings += _directory(shown_as, benchmark, group)
        path = org / "systems" / f"{system}.json"
        if path not in descriptions:
            descriptions[path], remarks = _description(path, shown_as)
            findings += remarks
        findings += _agreement(shown_as, system, descriptions[path], path, group)
        if benchmark is not None:
            orgs[org].add(f"{system}/{benchmark}")
    files = [*logs, *(str(path) for path, content in descriptions.items() if content is not None)]
    for org, pairs in orgs.items():
        findings += _code(org, sorted(pairs))
    return files, results, _unique(findings)


def _finding(
    rule: str, severity: str, path: object, message: str, expected: str, found: str, fix: str
) -> Finding:
    return Finding(rule, severity, str(path), 0, "", message, expected, found, fix)


def _unique(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


# ------------------------------------------------------------------------------------------------ files


def _find_logs(root: Path) -> tuple[list[str], list[Finding]]:
    """The logs below `root`: result_*.txt; where there is none, every text file that holds a record."""
    results, others, findings = [], [], []

    def unreadable(error: OSError) -> None:
        findings.append(_finding("not-checked", ERROR, error.filename, "The directory was not checked.",
                                 "a readable directory", str(error.strerror), "make it readable"))  # fmt: skip

    for directory, names, files in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        for name in sorted(files):
            path = os.path.join(directory, name)
            if _RESULT.fullmatch(name):
                kind = _kind(path)
                if kind == "file":
                    results.append(path)
                else:
                    findings.append(_finding("not-checked", ERROR, path, "The file was not checked.", "a plain file",
                                             kind, "put the log itself here; links are not followed"))  # fmt: skip
            elif name.endswith(_LOG_SUFFIXES) and _kind(path) == "file":
                others.append(path)
        place = _place(Path(os.path.abspath(directory)))
        if place and place[2] and not names and not any(_RESULT.fullmatch(name) for name in files):
            findings.append(_finding("tree.no-results", ERROR, directory, "The directory has no log, so nothing was checked.",
                                     "result_<i>.txt", f"{len(files)} other files",
                                     "name the logs result_0.txt, result_1.txt, ..."))  # fmt: skip
    if not results:
        results = [path for path in others if _has_token(path)]
    return results, findings


def _kind(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "a file that cannot be read"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "file" if stat.S_ISREG(mode) else "a special file"


def _has_token(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return TOKEN in file.read(1 << 20)
    except OSError:
        return True  # let the check say so


def _place(directory: Path) -> tuple[Path, str, str | None] | None:
    """(org, system, benchmark) of a directory below a `results/`; benchmark None where its level is missing."""
    parts = directory.parts
    if "results" not in parts:
        return None
    index = len(parts) - 1 - parts[::-1].index("results")
    below = parts[index + 1 :]
    if not 1 <= len(below) <= 2:
        return None
    return Path(*parts[:index]) if index else Path("."), below[0], below[1] if len(below) == 2 else None


# ---------------------------------------------------------------------------------- one directory of runs


def _directory(path: Path, benchmark: str | None, group: list[LogResult]):
    if benchmark is None:
        yield _finding("tree.layout", ADVICE, path, "The logs lie beside each other without a benchmark's directory.",
                       "results/<system>/<benchmark>/result_<i>.txt", str(path),
                       "put each benchmark's logs into a directory of its name")  # fmt: skip
        yield from _duplicates(group)
        return
    ruleset = group[0].ruleset
    own = ruleset in rules.OWN_RULESETS
    if own and benchmark not in rules.benchmarks(ruleset):
        near = nearest(benchmark, rules.benchmarks(ruleset))
        yield _finding("tree.benchmark-unknown", ERROR, path, "The directory is named after no benchmark of the ruleset.",
                       ", ".join(rules.benchmarks(ruleset)), benchmark,
                       f"did you mean {near}?" if near else "rename it, or check it with another ruleset")  # fmt: skip
    for result in group:
        if isinstance(result.benchmark, str) and result.benchmark != benchmark:
            yield _finding("tree.benchmark", ERROR, result.path, "The log is of another benchmark than its directory.",
                           benchmark, result.benchmark, f"move it to {result.benchmark}/, or correct the log")  # fmt: skip
    divisions = {result.division for result in group if isinstance(result.division, str)}
    if len(divisions) > 1:
        yield _finding("tree.division", ERROR, path, "The logs of one directory are of different divisions.",
                       "one division", " and ".join(sorted(divisions)), "keep the divisions apart")  # fmt: skip
    yield from _duplicates(group)
    wanted = rules.metric(ruleset, benchmark).get("runs") if own else None
    if wanted is None:
        return
    if len(group) != wanted:
        yield _finding("tree.run-count", ADVICE, path, "The number of runs is not that of the rules.", f"{wanted} runs",
                       str(len(group)), f"{benchmark} is scored over {wanted} runs")  # fmt: skip
    failed = sum(not result.passes or not result.met for result in group)
    if failed:
        score = "it counts as the dropped slowest" if failed == 1 else "there is no score"
        yield _finding("tree.score", ADVICE, path,
                       "Not every run counts for the olympic mean.", "at most one run without a valid result",
                       f"{failed} of {len(group)}: {score}", "repeat the set of runs; no single run may be exchanged")  # fmt: skip


def _duplicates(group: list[LogResult]):
    """Runs that are copies of each other, or that began from the same seed."""
    by_size: dict[int, list[str]] = defaultdict(list)
    for result in group:
        if os.path.exists(result.path):
            by_size[os.path.getsize(result.path)].append(result.path)
    by_content: dict[str, list[str]] = defaultdict(list)
    for paths in by_size.values():
        for path in paths if len(paths) > 1 else ():
            by_content[_digest(path)].append(path)
    for first, *copies in by_content.values():
        for copy in copies:
            yield _finding("tree.duplicate", ADVICE, copy, "The log is a copy of another run's.",
                           "one log for each run", f"the bytes of {Path(first).name}", "put the run's own log here")  # fmt: skip
    by_seed: dict[str, list[str]] = defaultdict(list)
    for result in group:
        if result.seed is not None:
            by_seed[shown(result.seed)].append(Path(result.path).name)
    for seed, members in by_seed.items():
        if len(members) > 1:
            yield _finding("tree.seed", ADVICE, Path(group[0].path).parent, "Several runs began from the same seed.",
                           "a different seed for each run", f"seed {seed} in {', '.join(members[:10])}",
                           "draw a new seed for each run")  # fmt: skip


def _digest(path: str) -> str:
    digest = sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------ systems


def _description(path: Path, asked_by: Path) -> tuple[dict | None, list[Finding]]:
    """The system's JSON and what is wrong with it; None when it cannot be used."""
    if not path.is_file():
        return None, [
            _finding("tree.system-missing", ADVICE, asked_by, "The system has no description.", f"systems/{path.name}",
                     "none", f"write {path.name}; `python -m systems detect` fills it in")
        ]  # fmt: skip
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"more than {_MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError(f"a JSON {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        return None, [
            _finding("system.json", ERROR, path, "The system description is not one JSON object.", "a JSON object",
                     str(error)[:120] or type(error).__name__, "write the 33 fields as one JSON object")
        ]  # fmt: skip
    from systems import schema  # has the fields and vocabularies; needed only when there is a description

    remarks = [
        _finding("system.field", ERROR, path, problem, "the 33 fields of the rules, all strings", path.name,
                 "`python -m systems validate` shows all; quote numbers")
        for problem in schema.validate(content)
    ]  # fmt: skip
    for field in ("number_of_nodes", "accelerators_per_node"):
        value = content.get(field)
        if not (isinstance(value, (str, int)) and re.fullmatch(r"\d{1,9}", str(value))):
            remarks.append(
                _finding("system.count", ADVICE, path, f"{field} is not a count, so accelerators cannot be compared.",
                         "a whole number in a string", shown(value), f"write {field} as a number, e.g. \"8\"")
            )  # fmt: skip
    return content, remarks


def _agreement(path: Path, system: str, description: dict | None, source: Path, group: list[LogResult]):
    """Whether directory, logs and system description name the same system and division."""
    if description is not None:
        division = description.get("division")
        logged = sorted({result.division for result in group if isinstance(result.division, str)})
        if isinstance(division, str) and logged and logged != [division]:
            yield _finding("tree.division", ERROR, path, "Log and system description are of different divisions.",
                           f"{division} (systems/{source.name})", " and ".join(logged),
                           "correct the one that is wrong")  # fmt: skip
    names = [system]
    if description is not None and isinstance(description.get("system_name"), str):
        names.append(description["system_name"])
        if _compare(names[1], system) == "other":
            yield _finding("tree.system", ERROR, source, "The description is of another system than its name.",
                           system, names[1], "rename the file, or correct system_name")  # fmt: skip
    for platform in sorted({result.platform for result in group if isinstance(result.platform, str)}):
        verdicts = {_compare(platform, name) for name in names}
        if "same" in verdicts:
            continue
        certain = "other" in verdicts or (len(names) == 2 and " " not in platform.strip())
        yield _finding("tree.system" if certain else "tree.system-unclear", ERROR if certain else ADVICE, path,
                       "The logs name another system than their directory." if certain
                       else "Whether the logs are of the directory's system cannot be told from the names.",
                       " or ".join(dict.fromkeys(names)), platform[:80],
                       "log the directory's name as submission_platform, or move the logs")  # fmt: skip


def _compare(name: str, other: str) -> str:
    """ "same" (one name begins like the other), "other" (the same words with other numbers), or "unclear"."""
    ours, theirs = _parts(name), _parts(other)
    shorter = min(len(ours), len(theirs))
    if shorter and ours[:shorter] == theirs[:shorter]:
        return "same"
    words, their_words = ([part for part in parts if part.isalpha()] for parts in (ours, theirs))
    shorter = min(len(words), len(their_words))
    return "other" if shorter and words[:shorter] == their_words[:shorter] else "unclear"


def _parts(name: str) -> list[str]:
    """ "TPU v3-32" -> ["tpuv", "3", "32"]."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])[^a-z\d]+(?=[a-z])", "", name.lower()[:200]))


# ------------------------------------------------------------------------------------- code and scripts


def _code(org: Path, pairs: list[str]):
    """The files that the rules ask for beside the results: scripts, README, implementation description."""
    root = org / "benchmarks"
    if not root.is_dir():
        yield _finding("tree.file-missing", ADVICE, org, "There is no benchmarks directory: code and scripts were not looked at.",
                       "benchmarks/<benchmark>/ with code, scripts and README", "none",
                       "`python -m compliance package` writes it")  # fmt: skip
        return
    for pair in pairs:
        system, benchmark = pair.split("/", 1)
        top = root / benchmark
        inside = top / "implementations"
        places = [top / system, inside / system, *(inside.glob(f"*/{system}") if inside.is_dir() else ())]
        present = {path.name for place in places if place.is_dir() for path in place.iterdir()}
        shared = {path.name for path in top.iterdir()} if top.is_dir() else set()
        missing = [
            name for name in _SCRIPTS if name not in present and not (name == "README.md" and name in shared)
        ]
        if not any(name.startswith(f"{system}_") and name.endswith(".json") for name in present):
            missing.append(f"{system}_<implementation>.json")
        for name in missing:
            yield _finding("tree.file-missing", ADVICE, top / system, f"{name} is missing.",
                           f"benchmarks/{benchmark}/{system}/{name}", "none",
                           "`python -m compliance package` writes it from the run's outputs")  # fmt: skip
