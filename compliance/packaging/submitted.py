"""Reads any submitter's logs, system description and code, and lists the files of their tree.

Needs nothing from this repository: only a folder of logs per benchmark, the description as JSON, and the code as files
on disk. The layout: mlcommons/policies, submission_rules.adoc, "Directory Structure".
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from compliance.log.lines import TOKEN
from compliance.packaging.package_inputs import SAFE_NAME, SCRIPTS, open_file, read_file
from compliance.packaging.package_output import Entry
from compliance.submission import scaling
from compliance.submission.coherence import same_organisation
from compliance.submission.runs import Run, read_run
from compliance.submission.scaling import factor

_MAX_JSON_BYTES = 1 << 20
_MAX_CODE_BYTES = 50 << 20  # mlperf_logging/repo_checker/repo_checker.py: no larger file in a repository
_FIRST_BYTES = 1 << 20
_MAX_CODE_FILES = 100_000


@dataclass(frozen=True)
class Folder:
    """The logs of one benchmark, in run order."""

    benchmark: str
    runs: tuple[Run, ...]


def read_folders(results: Path, system: str, ruleset: str | None) -> list[Folder]:
    """Reads `results`/`system`/BENCHMARK/, `results`/BENCHMARK/, or one benchmark's logs directly in `results`.

    Raises UserError for links, for folders without logs, and for one folder with logs of several benchmarks.
    """
    root = results / system if (results / system).is_dir() else results
    if root.is_symlink():
        raise UserError(f"{root}: is a symbolic link, and the packager follows none; name the folder itself")
    if not root.is_dir():
        raise UserError(f"{root}: no such folder; name the folder of the logs")
    places = [root] if _logs(root) else [path for path in _entries(root) if _is_folder(path)]
    folders = [_folder(place, logs, ruleset) for place in places if (logs := _logs(place))]
    if not folders:
        raise UserError(f"{root}: no file with {TOKEN.decode()} lines in it; name the folder of the logs")
    names = [folder.benchmark for folder in folders]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{root}: two folders hold logs of {name}; put the runs of one score in one folder"
            )
    return folders


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot read ({error.strerror}); make it readable") from None


def _is_folder(path: Path) -> bool:
    if path.is_symlink():
        raise UserError(
            f"{path}: is a symbolic link, and the packager follows none; put the folder itself there"
        )
    return path.is_dir()


def _logs(folder: Path) -> list[Path]:
    """Returns a folder's logs in numeric order: result_*.txt, or without any, every file that holds a record."""
    files = [path for path in _entries(folder) if path.is_symlink() or not path.is_dir()]
    named = [path for path in files if re.fullmatch(r"result_.*\.txt", path.name)]
    found = named or [path for path in files if not path.is_symlink() and path.is_file() and _has_token(path)]
    return sorted(
        found, key=lambda path: [int(d) if d.isdecimal() else d for d in re.split(r"(\d+)", path.name)]
    )


def _has_token(path: Path) -> bool:
    with open_file(path) as file:
        return TOKEN in file.read(_FIRST_BYTES)


def _folder(place: Path, logs: list[Path], ruleset: str | None) -> Folder:
    for path in logs:
        open_file(path).close()  # refuses a link or a pipe before a later read could block on it
    runs = tuple(read_run(path, ruleset) for path in logs)
    names = {run.benchmark for run in runs}
    if len(names) > 1:
        raise UserError(
            f"{place}: logs of {' and '.join(sorted(names))}; one folder holds runs of one benchmark"
        )
    (name,) = names
    if not SAFE_NAME.fullmatch(name):
        raise UserError(f"{logs[0]}: submission_benchmark is {name[:40]!r}; a log has to name its benchmark")
    return Folder(name, runs)


def refuse_unfit(folders: list[Folder], org: str, smoke: bool) -> None:
    """Refuses smoke runs and logs of another organization. Raises UserError."""
    if smoke:
        return
    for folder in folders:
        for run in folder.runs:
            if run.smoke:
                raise UserError(
                    f"{run.path}: is a smoke run, which is no result; practise with --smoke, or package full-size runs"
                )
            logged = run.header.get("submission_org")
            if not isinstance(logged, str) or not same_organisation(logged, org):
                raise UserError(
                    f"{run.path}: its submission_org is {str(logged)[:60]!r}, not {org}; give --org as the folder of "
                    "your organisation is called (Inventec for 'Inventec Corporation')"
                )


# What descriptions name under `framework` -> the usual name of the implementation's folder.
_FRAMEWORKS = (
    *("hugectr", "nemo", "megatron", "primus", "torchtitan", "maxtext", "neuronx", "optimum", "paddle"),
    *("mxnet", "merlin", "dgl", "jax", "tensorflow", "pytorch"),
)


def implementation_name(described: Path) -> str:
    """Returns the name of the implementation's folder, from `framework` of the description.

    Raises UserError if the description is not a JSON object.
    """
    framework = str(_object(described).get("framework", "")).casefold()
    known = next((name for name in _FRAMEWORKS if name in framework), None)
    first = re.search(r"[a-z0-9][a-z0-9.+-]*", framework)
    return known or (first[0][:40] if first else "implementation")


def description(path: Path, org: str, run: Run) -> bytes:
    """Returns the system description for the tree: as given, plus missing fields that only the submission knows.

    Raises UserError if it is not a JSON object.
    """
    content = _object(path)
    own = {"submitter": org, "division": run.header.get("submission_division")}
    for name, value in own.items():
        if isinstance(value, str) and not content.get(name):
            content[name] = value
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def _object(path: Path) -> dict:
    try:
        content = json.loads(read_file(path, _MAX_JSON_BYTES).decode("utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError(f"a JSON {type(content).__name__}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: no system description ({str(error)[:80]}); give a JSON object") from None
    return content


def code_of(options: list[str], benchmark: str) -> Path | None:
    """Returns the folder of a benchmark's code: DIR of BENCHMARK=DIR, else DIR/BENCHMARK if it exists, else DIR."""
    named = dict(option.split("=", 1) for option in options if "=" in option)
    if benchmark in named:
        return Path(named[benchmark])
    for option in options:
        if "=" not in option:
            inner = Path(option) / benchmark
            return inner if inner.is_dir() else Path(option)
    return None


def code_entries(source: Path, place: str) -> list[Entry]:
    """Lists the files of a code folder as entries below `place`; skips hidden ones, which a submission may not hold.

    Raises UserError for links, special files, names with spaces, and files that the results repository refuses.
    """
    if source.is_symlink() or not source.is_dir():
        raise UserError(f"{source}: no folder of code; name it with --code")
    entries: list[Entry] = []
    folders = [source]
    while folders:
        for path in _entries(folders.pop()):
            if path.name == "__pycache__":
                continue
            if path.is_symlink():
                raise UserError(
                    f"{path}: is a symbolic link; put the file itself there, a package holds plain files"
                )
            if " " in path.name or not path.name.isprintable():
                raise UserError(f"{path}: a submission takes no spaces in names; rename it")
            if path.is_dir():
                folders.append(path)
                continue
            with open_file(path) as file:
                size = file.seek(0, 2)
            if size > _MAX_CODE_BYTES:
                raise UserError(f"{path}: more than 50 MB, which a submission does not take; leave it out")
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            entries.append(Entry(f"{place}/{path.relative_to(source).as_posix()}", path, mode))
            if len(entries) > _MAX_CODE_FILES:
                raise UserError(
                    f"{source}: more than {_MAX_CODE_FILES:,} files; name the code alone with --code"
                )
    return entries


def plan(
    folders: list[Folder],
    org: str,
    system: str,
    implementation: str,
    described: Path,
    code: list[str],
    implementation_json: Path | None,
    top: str,
) -> list[Entry]:
    """Lists every file of the tree, in order."""
    entries = [Entry(f"{top}/systems/{system}.json", description(described, org, folders[0].runs[0]))]
    for folder in folders:
        place = f"{top}/benchmarks/{folder.benchmark}"
        source = code_of(code, folder.benchmark)
        if source is None:
            raise UserError(f"--code: names no folder for {folder.benchmark}; give {folder.benchmark}=DIR")
        inner = f"{place}/implementations/{implementation}"
        files = code_entries(source, inner)
        entries += files
        entries += _of_system(files, inner, f"{place}/{system}", implementation)
        if implementation_json is not None:
            content = read_file(implementation_json, _MAX_JSON_BYTES)
            entries.append(Entry(f"{place}/{system}/{system}_{implementation}.json", content))
        entries += scaling_entries(folder.runs[0].path.parent, f"{top}/results/{system}/{folder.benchmark}")
        for number, run in enumerate(folder.runs):
            entries.append(Entry(f"{top}/results/{system}/{folder.benchmark}/result_{number}.txt", run.path))
    return sorted(entries, key=lambda entry: entry.path)


def scaling_entries(source: Path, place: str) -> list[Entry]:
    """Takes along the review committee's scaling.json if it lies beside the logs, in `source`.

    Raises UserError for a file that holds no factor.
    """
    found = factor(source, None)
    if found.problem:
        raise UserError(
            f"{source / scaling.NAME}: {found.problem}; remove it, or write the committee's factor"
        )
    if not (source / scaling.NAME).is_file():
        return []
    return [Entry(f"{place}/{scaling.NAME}", read_file(source / scaling.NAME, _MAX_JSON_BYTES))]


def _of_system(files: list[Entry], inner: str, own: str, implementation: str) -> list[Entry]:
    """Puts README.md and the scripts where the rules expect them. Each script calls the script in the code."""
    present = {entry.path.removeprefix(f"{inner}/"): entry for entry in files}
    entries = []
    if "README.md" in present:
        entries.append(Entry(f"{own}/README.md", present["README.md"].content))
    for script in SCRIPTS:
        if script in present:
            text = (
                "#!/usr/bin/env bash\n# Calls the script of the code that ran.\nset -euo pipefail\n"
                f'cd "$(dirname "${{BASH_SOURCE[0]}}")/../implementations/{implementation}"\n'
                f'exec bash ./{script} "$@"\n'
            )
            entries.append(Entry(f"{own}/{script}", text.encode(), 0o755))
    return entries
