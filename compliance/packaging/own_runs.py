"""Reads runs of this repository for a package: results with their run.json, and the code of the commit that ran."""

import json
import re
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from common.files import INSTALLED
from compliance.packaging import package_output
from compliance.packaging.package_output import SAFE_NAME, Part, as_json, digest_of, real_folder
from compliance.submission.runs import Run, read_run
from compliance.submission.tree_files import by_number

# The fields that the 2020 submission rules require in <system>_<implementation>.json
# (mlcommons/policies submission_rules.adoc at 3f35851).
IMPLEMENTATION = (
    "starting_weights_filename", "weight_transformations", "weight_data_types", "input_data_types", "retraining",
)  # fmt: skip
# The folders of a checkout that a run needs in addition to its benchmark's folder.
_CODE = ("common", "compliance", "systems", "timetotrain", "tools/requirements")
_CODE_FILES = frozenset(("LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py"))
_AGAIN, _SOURCE = "run the benchmark again", "name the checkout that ran with --source"


@dataclass(frozen=True)
class Benchmark:
    """The runs of one benchmark on the system, each with its record in run.json.

    Whatever describes all the runs must be equal in each.
    """

    name: str
    results: tuple[tuple[Run, dict], ...]

    def common(self, field: str) -> object:
        """Returns the value of `field` in the runs' records. Raises UserError if the records differ."""
        values = [record.get(field) for _, record in self.results]
        if any(value != values[0] for value in values):
            fix = "package only runs of one kind together"
            raise UserError(f"{self.record}: the runs differ in {field!r}; {fix}")
        return values[0]

    @property
    def record(self) -> Path:
        return self.results[0][0].path.parent / "run.json"


def read_results(folder: Path, system: str) -> list[Benchmark]:
    """Reads the benchmarks in `folder`/`system` (or in `folder` itself if it is named `system`), in order.

    Raises UserError for links, logs without a record, logs that changed since their run, and records without a log.
    """
    folder = Path(folder)
    root = folder if folder.name == system and not (folder / system).is_dir() else folder / system
    real_folder(root, f"name the folder that holds {system}/")
    places = [place for place in sorted(root.iterdir()) if not place.name.startswith(".")]
    benchmarks = [_read_benchmark(place) for place in places if real_folder(place)]
    if not benchmarks:
        place = f"{system}/<benchmark>/result_0.txt"
        raise UserError(f"{root}: holds no benchmark's folder; it should have {place}")
    return benchmarks


def _read_benchmark(place: Path) -> Benchmark:
    if not SAFE_NAME.fullmatch(place.name):
        raise UserError(f"{place}: not a name for a benchmark; use letters, digits, '.', '_' and '-'")
    records = _records(place / "run.json")
    logs = sorted(path.name for path in place.iterdir() if re.fullmatch(r"result_.*", path.name))
    strange = [name for name in logs if name not in records]
    if strange:
        fix = "package runs of this repository only"
        raise UserError(f"{place / strange[0]}: has no record in run.json; {fix}")
    absent = sorted(set(records) - set(logs))
    if absent:
        raise UserError(f"{place / absent[0]}: is in run.json but not here; no run of a set may be left out")
    results = []
    for path in sorted(map(place.joinpath, records), key=by_number):
        digests = records[path.name].get("files")
        if not isinstance(digests, dict) or digests.get(path.name) != digest_of(path):
            raise UserError(f"{path}: is not the file that its run wrote (SHA-256 in run.json); restore it")
        results.append((read_run(path), records[path.name]))
    return Benchmark(place.name, tuple(results))


def _records(path: Path) -> dict[str, dict]:
    try:
        content = json.loads(package_output.read_file(path, package_output.MAX_JSON_BYTES))
        runs = content["runs"]
        if content["schema"] != 1 or not runs:
            raise ValueError("not schema 1 with runs")
        for name, record in runs.items():
            if not re.fullmatch(r"result_\d{1,4}\.txt", name):
                raise ValueError(f"a record named {name[:40]!r}; a run's log is result_<i>.txt")
            if not isinstance(record, dict):
                raise ValueError(f"the record of {name} is not an object")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: not a run.json of this repository ({error}); {_AGAIN}") from None
    return runs


def parts(benchmarks: list[Benchmark], source: Path | None, smoke: bool) -> list[Part]:
    """Returns the parts of the package; `source`: the checkout of the code, None: this one.

    Raises UserError if the runs' records are incomplete or differ, or the commit that ran is not to be had.
    """
    if source is None and INSTALLED:
        reason = "not given, and an installed package has no commits"
        raise UserError(f"--source: {reason}; name the checkout that ran")
    source = source or Path(__file__).resolve().parents[2]
    return [_part(one, source, smoke) for one in benchmarks]


def _part(benchmark: Benchmark, source: Path, smoke: bool) -> Part:
    preset = str(benchmark.common("system"))
    if not SAFE_NAME.fullmatch(preset):
        raise UserError(f"{benchmark.record}: {preset[:40]!r} is not a preset's name; {_AGAIN}")

    def call(script: str) -> str:
        system = f"export SYSTEM=${{SYSTEM:-{preset}}}\n"
        return f'{system}exec bash "$(dirname "${{BASH_SOURCE[0]}}")/{script}" "$@"\n'

    code = code_files(source, _commit(benchmark, source, smoke), benchmark.name)
    runs = tuple((run, record["files"][run.path.name]) for run, record in benchmark.results)
    inside = f"{benchmark.name}/"
    return Part(benchmark.name, runs, code, inside, call, _implementation_json(benchmark))


def description(benchmarks: list[Benchmark], org: str, system: str) -> bytes:
    """Returns the machine's 33 fields as JSON. Raises UserError if benchmarks' descriptions differ or are damaged."""
    from systems.schema import NAMES, status_in

    descriptions = [benchmark.common("system_description") for benchmark in benchmarks]
    for benchmark, fields in zip(benchmarks, descriptions):
        if not isinstance(fields, dict):
            raise UserError(f"{benchmark.record}: system_description is not an object; {_AGAIN}")
    if any(fields != descriptions[0] for fields in descriptions):
        reason = "its benchmarks ran on systems of different description"
        raise UserError(f"{system}: {reason}; package them apart")
    run, record = benchmarks[0].results[0]
    filled = {name: str(run.header.get(f"submission_{name}", "")) for name in ("division", "status")}
    filled["status"] = status_in(run.ruleset, filled["status"])
    filled |= {"submitter": org, "system_name": str(record.get("hardware") or system)}
    return as_json({name: filled.get(name, descriptions[0].get(name, "")) for name in NAMES})


def _implementation_json(benchmark: Benchmark) -> bytes:
    fields = benchmark.common("implementation")
    fields = fields if isinstance(fields, dict) else {}
    if missing := [name for name in IMPLEMENTATION if not isinstance(fields.get(name), str)]:
        raise UserError(f"{benchmark.record}: implementation lacks {', '.join(missing)}; {_AGAIN}")
    return as_json({name: fields[name] for name in IMPLEMENTATION})


# ------------------------------------------------------------------------------------------------ code


def code_files(source: Path, commit: str, benchmark: str) -> dict[str, tuple[int, bytes]]:
    """Reads the files that a run of the benchmark needs from a commit: {path: (mode, content)}.

    Raises UserError if the commit does not exist, or if a link or a submodule is among the files.
    """
    listing = _git(source, "ls-tree", "-r", "-z", "--full-tree", commit)
    listed: list[tuple[str, int, str]] = []
    for entry in filter(None, listing.split(b"\0")):
        head, _, raw = entry.partition(b"\t")
        mode, kind, name = *head.split()[:2], raw.decode(errors="surrogateescape")
        folders = tuple(f"{folder}/" for folder in (*_CODE, benchmark))
        if not (name in _CODE_FILES or name.startswith(folders)):
            continue
        if kind != b"blob" or mode == b"120000" or not name.isprintable() or ".." in name.split("/"):
            reason = f"{name!r} in {commit[:12]} is not a plain file"
            raise UserError(f"{source}: {reason}; packages hold plain files only")
        listed.append((name, 0o755 if mode == b"100755" else 0o644, head.split()[2].decode()))
    if not any(name.startswith(f"{benchmark}/") for name, _, _ in listed):
        reason = f"commit {commit[:12]} has no folder {benchmark}/"
        raise UserError(f"{source}: {reason}; name its checkout with --source")
    request = "".join(f"{sha}\n" for _, _, sha in listed).encode()
    objects = _git(source, "cat-file", "--batch", text=request)
    files, place = {}, 0
    for name, mode, _ in listed:
        end = objects.index(b"\n", place)
        size = int(objects[place:end].split()[2])
        files[name] = (mode, objects[end + 1 : end + 1 + size])
        place = end + 2 + size
    return files


def _git(source: Path, *arguments: str, text: bytes | None = None) -> bytes:
    command = ("git", "-C", str(source), *arguments)
    try:
        done = subprocess.run(command, input=text, capture_output=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"git: cannot run ({error}); install git, which knows what code ran") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or ["failed"]
        raise UserError(f"{source}: git {arguments[0]}: {reason[-1]}; {_SOURCE}")
    return done.stdout


def _commit(benchmark: Benchmark, source: Path, smoke: bool) -> str:
    """Returns the commit that ran; with `smoke`, the checkout's own commit if the run's commit is not available."""
    git = benchmark.common("git")
    commit, dirty = (git.get("commit"), git.get("dirty")) if isinstance(git, dict) else (None, True)
    if isinstance(commit, str) and re.fullmatch(r"[0-9a-f]{40,64}", commit) and (smoke or not dirty):
        with suppress(UserError):  # unless the checkout does not know the commit
            _git(source, "cat-file", "-e", f"{commit}^{{commit}}")
            return commit
    if smoke:
        return _git(source, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    if dirty:
        reason = "the runs used code that was not committed"
        raise UserError(f"{benchmark.record}: {reason}; commit, and run again")
    raise UserError(f"{benchmark.record}: commit {str(commit)[:12]} is not in {source}; {_SOURCE}")
