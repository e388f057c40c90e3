"""Reads any submitter's logs, system description and code for a package.

Needs nothing from this repository: only a folder of logs per benchmark, the description as JSON, and the code as files
on disk. The layout: mlcommons/policies, submission_rules.adoc, "Directory Structure".
"""

import json
import re
from pathlib import Path

from common.errors import UserError
from compliance.log.lines import TOKEN
from compliance.packaging.package_output import SAFE_NAME, Part, as_json, open_file, read_file, real_folder
from compliance.submission.runs import Run, read_run
from compliance.submission.tree_files import by_number, has_token, kind_of

_MAX_JSON_BYTES = 1 << 20
_MAX_CODE_BYTES = 50 << 20  # mlperf_logging/repo_checker/repo_checker.py: no larger file in a repository
_MAX_CODE_FILES = 100_000


def read_folders(results: Path, system: str, ruleset: str | None) -> dict[str, list[Run]]:
    """Returns {benchmark: its runs, in order}.

    Reads `results`/`system`/BENCHMARK/, `results`/BENCHMARK/, or one benchmark's logs directly in `results`.

    Raises UserError for links, for folders without logs, and for one folder with logs of several benchmarks.
    """
    root = results / system if (results / system).is_dir() else results
    real_folder(root, "name the folder of the logs")
    places = [root] if _logs(root) else [path for path in _entries(root) if real_folder(path)]
    folders: dict[str, list[Run]] = {}
    for place in places:
        if logs := _logs(place):
            name, runs = _folder(place, logs, ruleset)
            if folders.setdefault(name, runs) is not runs:
                fix = "put the runs of one score in one folder"
                raise UserError(f"{root}: two folders hold logs of {name}; {fix}")
    if not folders:
        raise UserError(f"{root}: no file with {TOKEN.decode()} lines in it; name the folder of the logs")
    return folders


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder}: cannot read ({error.strerror}); make it readable") from None


def _logs(folder: Path) -> list[Path]:
    """Returns a folder's logs in numeric order: result_*.txt, or without any, every file that holds a record."""
    files = [path for path in _entries(folder) if path.is_symlink() or not path.is_dir()]
    results = [path for path in files if re.fullmatch(r"result_.*\.txt", path.name)]
    logs = results or [path for path in files if kind_of(path) == "file" and has_token(path)]
    return sorted(logs, key=by_number)


def _folder(place: Path, logs: list[Path], ruleset: str | None) -> tuple[str, list[Run]]:
    for path in logs:
        open_file(path).close()  # refuses a link or a pipe before a later read could block on it
    runs = [read_run(path, ruleset) for path in logs]
    name, *others = sorted({run.benchmark for run in runs})
    if others:
        names = " and ".join([name, *others])
        raise UserError(f"{place}: logs of {names}; one folder holds runs of one benchmark")
    if not SAFE_NAME.fullmatch(name):
        raise UserError(f"{logs[0]}: submission_benchmark is {name[:40]!r}; a log has to name its benchmark")
    return name, runs


# What descriptions name under `framework` -> the usual name of the implementation's folder.
_FRAMEWORKS = (
    "hugectr", "nemo", "megatron", "primus", "torchtitan", "maxtext", "neuronx", "optimum", "paddle", "mxnet",
    "merlin", "dgl", "jax", "tensorflow", "pytorch",
)  # fmt: skip


def implementation_name(description: Path) -> str:
    """Returns the name of the implementation's folder, from `framework` of the description.

    Raises UserError if the description is not a JSON object.
    """
    framework = str(_object(description).get("framework", "")).casefold()
    usual_name = next((name for name in _FRAMEWORKS if name in framework), None)
    first = re.search(r"[a-z0-9][a-z0-9.+-]*", framework)
    return usual_name or (first[0][:40] if first else "implementation")


def description(path: Path, org: str, run: Run) -> bytes:
    """Returns the system description for the tree: as given, plus missing fields that only the submission knows.

    Raises UserError if it is not a JSON object.
    """
    content = _object(path)
    fields = {"submitter": org, "division": run.header.get("submission_division")}
    for name, value in fields.items():
        if isinstance(value, str) and not content.get(name):
            content[name] = value
    return as_json(content)


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
    folders = dict(option.split("=", 1) for option in options if "=" in option)
    if benchmark in folders:
        return Path(folders[benchmark])
    for option in options:
        if "=" not in option:
            inner = Path(option) / benchmark
            return inner if inner.is_dir() else Path(option)
    return None


def code_files(source: Path) -> dict[str, tuple[int, Path]]:
    """Returns {path: (mode, file)} of a code folder; skips hidden files, which a submission may not hold.

    Raises UserError for links, special files, names with spaces, and files that the results repository refuses.
    """
    if source.is_symlink() or not source.is_dir():
        raise UserError(f"{source}: no folder of code; name it with --code")
    files: dict[str, tuple[int, Path]] = {}
    folders = [source]
    while folders:
        for path in _entries(folders.pop()):
            if path.name == "__pycache__":
                continue
            if path.is_symlink():
                fix = "put the file itself there, a package holds plain files"
                raise UserError(f"{path}: is a symbolic link; {fix}")
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
            files[path.relative_to(source).as_posix()] = mode, path
            if len(files) > _MAX_CODE_FILES:
                fix = "name the code alone with --code"
                raise UserError(f"{source}: more than {_MAX_CODE_FILES:,} files; {fix}")
    return files


def parts(folders: dict[str, list[Run]], code: list[str], implementation_json: Path | None) -> list[Part]:
    """Returns the package's parts, from the command line's values; raises UserError if a benchmark has no code."""
    described = read_file(implementation_json, _MAX_JSON_BYTES) if implementation_json else None
    benchmarks = []
    for name, runs in folders.items():
        source = code_of(code, name)
        if source is None:
            raise UserError(f"--code: names no folder for {name}; give {name}=DIR")
        undigested = tuple((run, "") for run in runs)
        benchmarks.append(Part(name, undigested, code_files(source), "", _call, described))
    return benchmarks


def _call(script: str) -> str:
    folder, _, name = script.rpartition("/")
    return f'cd "$(dirname "${{BASH_SOURCE[0]}}")/{folder}"\nexec bash ./{name} "$@"\n'
