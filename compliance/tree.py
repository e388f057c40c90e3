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
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from compliance import rules
from compliance.check import LogResult, check_logs
from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import nearest
from compliance.lines import TOKEN
from compliance.logs import shown

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
        findings.append(finding("tree.empty", ERROR, root, "result_*.txt", "none"))
    groups: dict[tuple[Path, Path], list[LogResult]] = defaultdict(list)
    for result in results:
        directory = Path(os.path.abspath(result.path)).parent
        groups[directory, Path(result.path).parent].append(result)
    orgs: dict[Path, set[str]] = defaultdict(set)
    descriptions: dict[Path, dict | None] = {}
    findings += _duplicates(results)
    for (directory, shown_as), group in groups.items():
        place = _place(directory)
        findings += _same_seed(shown_as, group)
        if place is None:
            continue
        org, system, benchmark = place
        findings += _directory(shown_as, benchmark, group)
        path = org / "systems" / f"{system}.json"
        if path not in descriptions:
            descriptions[path], remarks = _description(path, shown_as, group[0].ruleset)
            findings += remarks
        findings += _agreement(shown_as, system, descriptions[path], path, group)
        if benchmark is not None:
            orgs[org].add(f"{system}/{benchmark}")
    files = [*logs, *(str(path) for path, content in descriptions.items() if content is not None)]
    for org, pairs in orgs.items():
        findings += _code(org, sorted(pairs))
    return files, results, _unique(findings)


def _unique(findings: list[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


# ------------------------------------------------------------------------------------------------ files


def _find_logs(root: Path) -> tuple[list[str], list[Finding]]:
    """The logs below `root`: result_*.txt and, outside the layout of a submission, every text file that holds
    a record; where there is none of these, any file that does.

    In a benchmark's directory of results a log of another name is an error: no tool would look at it.
    """
    results, others, rest, findings = [], [], [], []

    def unreadable(error: OSError) -> None:
        findings.append(_unreadable(error.filename, error))

    for directory, names, files in os.walk(root, onerror=unreadable):
        names[:] = sorted(name for name in names if not name.startswith(".") and name != "__pycache__")
        for name in names:
            path = os.path.join(directory, name)
            if os.path.islink(path):  # os.walk goes past it
                fix = "put the directory itself here, or check what it points to"
                findings.append(_unchecked(path, "this directory", "a symbolic link", fix))
        for name in sorted(files):
            path = os.path.join(directory, name)
            if _RESULT.fullmatch(name):
                kind = _kind(path)
                if kind == "file":
                    results.append(path)
                else:
                    findings.append(
                        _unchecked(path, "this file", kind, "put the log itself here, not a link")
                    )
            elif _kind(path) == "file":
                (others if name.endswith(_LOG_SUFFIXES) else rest).append(path)
        place = _place(Path(os.path.abspath(directory)))
        if place and place[2] and not names and not any(_RESULT.fullmatch(name) for name in files):
            found = f"{len(files)} other files"
            findings.append(finding("tree.no-results", ERROR, directory, "result_<i>.txt", found))
    for path in filter(_has_token, others):
        directory = Path(os.path.abspath(path)).parent
        if _place(directory) is not None:
            fix = "name it result_<i>.txt, or check it by its own name"
            findings.append(_unchecked(path, "this log", "another name than result_<i>.txt", fix))
        elif not {"benchmarks", "implementations"} & {*directory.parts}:  # sample logs may lie beside code
            results.append(path)
    if not results and not findings:
        results = [path for path in rest if _has_token(path)]
    return sorted(results), findings


def _unreadable(directory: str | Path, error: OSError) -> Finding:
    return _unchecked(directory, "this directory", _reason(error), "make it readable")


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _unchecked(path: str | Path, what: str, found: str, fix: str) -> Finding:
    return finding("not-checked", ERROR, path, "a plain, readable file", found, what=what, fix=fix)


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
    """(org, system, benchmark) of a directory below a `results/`; benchmark None where its level is
    missing."""
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
        wanted = "results/<system>/<benchmark>/result_<i>.txt"
        yield finding("tree.layout", ADVICE, path, wanted, str(path))
        return
    ruleset = group[0].ruleset
    own = ruleset in rules.OWN_RULESETS
    if own and benchmark not in (known := rules.benchmarks(ruleset)):
        near = nearest(benchmark, known)
        wording = "tree.benchmark-unknown" + (".near" if near else "")
        names = {"wording": wording, "near": near}
        yield finding("tree.benchmark-unknown", ERROR, path, ", ".join(known), benchmark, **names)
    for one in group:
        if isinstance(one.benchmark, str) and one.benchmark != benchmark:
            found = one.benchmark[:80]
            yield finding("tree.benchmark", ERROR, one.path, benchmark, found, benchmark=found)
    divisions = {result.division for result in group if isinstance(result.division, str)}
    if len(divisions) > 1:
        yield finding("tree.division", ERROR, path, "one division", " and ".join(sorted(divisions)))
    wanted = rules.metric(ruleset, benchmark).get("runs") if own else None
    if wanted is None:
        return
    if len(group) != wanted:
        names = {"benchmark": benchmark, "runs": wanted}
        yield finding("tree.run-count", ADVICE, path, f"{wanted} runs", str(len(group)), **names)
    if failed := sum(not result.passes or not result.met for result in group):
        score = "it counts as the dropped slowest" if failed == 1 < len(group) else "there is no score"
        found = f"{failed} of {len(group)}: {score}"
        yield finding("tree.score", ADVICE, path, "at most one run without a valid result", found)


def _duplicates(results: list[LogResult]):
    """Runs that are copies of each other, wherever they lie."""
    by_size: dict[int, list[LogResult]] = defaultdict(list)
    for result in results:
        with suppress(OSError):  # what is gone or out of reach has a finding of its own
            by_size[os.path.getsize(result.path)].append(result)
    by_content: dict[str, list[str]] = defaultdict(list)
    for group in by_size.values():
        for result in group if len(group) > 1 else ():
            try:
                by_content[_digest(result.path)].append(result.path)
            except OSError as error:
                if not any(one.rule == "not-checked" for one in result.findings):  # or it is said already
                    yield _unchecked(result.path, "this file", _reason(error), "make it readable")
    for first, *copies in by_content.values():
        for copy in copies:
            near = Path(first).parent == Path(copy).parent
            found = f"the bytes of {Path(first).name if near else first}"
            yield finding("tree.duplicate", ADVICE, copy, "one log for each run", found)


def _same_seed(path: Path, group: list[LogResult]):
    """Runs of one directory that began from the same seed."""
    by_seed: dict[str, list[str]] = defaultdict(list)
    for result in group:
        if result.seed is not None:
            by_seed[shown(result.seed)].append(Path(result.path).name)
    for seed, members in by_seed.items():
        if len(members) > 1:
            found = f"seed {seed} in {', '.join(members[:10])}"
            yield finding("tree.seed", ADVICE, path, "a different seed for each run", found)


def _digest(path: str) -> str:
    digest = sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------ systems


def _description(path: Path, asked_by: Path, ruleset: str) -> tuple[dict | None, list[Finding]]:
    """The system's JSON and what is wrong with it; None when it cannot be used."""
    try:
        if not path.is_file():
            wanted = f"systems/{path.name}"
            return None, [finding("tree.system-missing", ADVICE, asked_by, wanted, "none", name=path.name)]
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"more than {_MAX_JSON_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError(f"a JSON {type(content).__name__}")
    except (OSError, ValueError, RecursionError) as error:
        found = str(error)[:120] or type(error).__name__
        return None, [finding("system.json", ERROR, path, "a JSON object", found)]
    from systems import schema  # has the fields and vocabularies; needed only when there is a description

    wanted = "the 33 fields of the rules, all strings"
    remarks = [
        finding("system.field", ERROR, path, wanted, path.name, problem=problem)
        for problem in schema.errors(content, ruleset or "0.7.0")
    ]
    remarks += [
        finding("system.field", ADVICE, path, "a value, or nothing", path.name, problem=problem)
        for problem in schema.placeholders(content)
    ]
    for field in ("number_of_nodes", "accelerators_per_node"):
        value = content.get(field)
        if not (isinstance(value, (str, int)) and re.fullmatch(r"\d{1,9}", str(value))):
            wanted = "a whole number in a string"
            remarks.append(finding("system.count", ADVICE, path, wanted, shown(value), field=field))
    return content, remarks


def _agreement(path: Path, system: str, description: dict | None, source: Path, group: list[LogResult]):
    """Whether directory, logs and system description name the same system and division."""
    if description is not None:
        division = description.get("division")
        logged = sorted({result.division for result in group if isinstance(result.division, str)})
        # A wrong case is a wrong word of the description (system.field), not another division.
        if isinstance(division, str) and logged and logged != [division.strip().lower()]:
            wanted, found = f"{division} (systems/{source.name})", " and ".join(logged)
            yield finding("tree.division", ERROR, path, wanted, found, wording="tree.division.system")
    names = [system]
    if description is not None and isinstance(description.get("system_name"), str):
        names.append(description["system_name"])
        if _compare(names[1], system) == "other":
            yield finding("tree.system", ERROR, source, system, names[1], wording="tree.system.file")
    for platform in sorted({result.platform for result in group if isinstance(result.platform, str)}):
        verdicts = {_compare(platform, name) for name in names}
        if "same" in verdicts:
            continue
        certain = "other" in verdicts or (len(names) == 2 and " " not in platform.strip())
        rule, severity = ("tree.system", ERROR) if certain else ("tree.system-unclear", ADVICE)
        yield finding(rule, severity, path, " or ".join(dict.fromkeys(names)), platform[:80])


_NODES = re.compile(r"^\s*\d+\s*x\s*(?=\w)", re.IGNORECASE)


def _compare(name: str, other: str) -> str:
    """ "same" (one name begins like the other, or is in it), "other" (the same words with other numbers), or
    "unclear". A count of nodes that one of them has in front ("1xDGX-1") says nothing.
    """
    if bool(_NODES.match(name)) != bool(_NODES.match(other)):
        name, other = _NODES.sub("", name), _NODES.sub("", other)
    # "NVIDIA DGX-1" is in "dgx1_mxnet" but for its maker.
    if any(_holds(a, b) or _holds(a, b.partition(" ")[2]) for a, b in ((name, other), (other, name))):
        return "same"
    ours, theirs = _parts(name), _parts(other)
    shorter = min(len(ours), len(theirs))
    if shorter and ours[:shorter] == theirs[:shorter]:
        return "same"
    words, their_words = ([part for part in parts if part.isalpha()] for parts in (ours, theirs))
    shorter = min(len(words), len(their_words))
    return "other" if shorter and words[:shorter] == their_words[:shorter] else "unclear"


def _holds(name: str, part: str) -> bool:
    """Whether `part` is in `name` but for case and punctuation, without cutting a number or being a scrap."""
    whole, inner = (re.sub(r"[^a-z\d]", "", text.lower()[:200]) for text in (name, part))
    return len(inner) > 3 and bool(re.search(rf"(?<!\d){inner}(?!\d)", whole))


def _parts(name: str) -> list[str]:
    """ "TPU v3-32" -> ["tpuv", "3", "32"]."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z])[^a-z\d]+(?=[a-z])", "", name.lower()[:200]))


# ------------------------------------------------------------------------------------- code and scripts


def _code(org: Path, pairs: list[str]):
    """The files that the rules ask for beside the results: scripts, README, implementation description."""
    root = org / "benchmarks"
    if not root.is_dir():
        wanted = "benchmarks/<benchmark>/ with code, scripts and README"
        yield finding("tree.file-missing", ADVICE, org, wanted, "none", name="The directory benchmarks/")
        return
    for pair in pairs:
        system, benchmark = pair.split("/", 1)
        top = root / benchmark
        inside = top / "implementations"
        try:
            places = [top / system, inside / system, *(inside / name / system for name in _names(inside))]
            present = {name for place in places for name in _names(place)}
            shared = _names(top)
        except OSError as error:  # what may lie there is not said to be missing
            yield _unreadable(error.filename, error)
            continue
        missing = [
            name for name in _SCRIPTS if name not in present and not (name == "README.md" and name in shared)
        ]
        if not any(name.startswith(f"{system}_") and name.endswith(".json") for name in present):
            missing.append(f"{system}_<implementation>.json")
        for name in missing:
            wanted = f"benchmarks/{benchmark}/{system}/{name}"
            yield finding("tree.file-missing", ADVICE, top / system, wanted, "none", name=name)


def _names(directory: Path) -> set[str]:
    """What lies in a directory; nothing where there is none. Raises OSError when it cannot be read."""
    try:
        return set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return set()
