"""Tries the hand-written faults: python -m tools.mutate [--changed_since REV] [--only TEXT] [--again]

Results go to a JSON file; a fault with a result there is retried only if its source or tests changed. The exit status
is 1 if a fault survived that is not marked equivalent. For mechanical changes of a file, use mutmut or cosmic-ray.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

from common.errors import UserError
from tools.mutate import runner
from tools.mutate.faults import RESULTS, ROOT, Fault, hand_written, summary
from tools.mutate.runner import CAUGHT

EQUIVALENT = "equivalent"


def key(fault: Fault) -> str:
    """Identifies a fault, including the text it changes and the tests that should notice it."""
    texts = [fault.name, fault.new, (ROOT / fault.file).read_text(encoding="utf-8"), *fault.tests]
    texts += [
        (ROOT / test.partition("::")[0]).read_text(encoding="utf-8")
        for test in fault.tests
        if (ROOT / test.partition("::")[0]).is_file()
    ]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def changed_since(revision: str, root: Path = ROOT) -> set[str]:
    """The files that differ between the working tree and its merge base with a revision.

    Raises UserError if git does not know the revision.
    """
    command = ["git", "diff", "--name-only", "--merge-base", revision]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UserError(
            f"--changed_since={revision}: {done.stderr.strip().splitlines()[0]}; name a commit or branch"
        )
    return set(done.stdout.split())


def _selection(options: argparse.Namespace) -> list[Fault]:
    faults = hand_written()
    if options.only:
        faults = [fault for fault in faults if options.only in fault.name or options.only in fault.file]
    if options.changed_since:
        changed = changed_since(options.changed_since)
        faults = [
            f for f in faults if f.file in changed or any(t.partition("::")[0] in changed for t in f.tests)
        ]
    return faults


def _write(path: Path, results: dict[str, dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__.split("\n\n")[1])
    parser.add_argument("--changed_since", metavar="REV", help="only faults of files that differ from REV")
    parser.add_argument("--only", metavar="TEXT", help="only faults whose name or file holds TEXT")
    parser.add_argument("--again", action="store_true", help="try those with a result, too")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: results.json")
    parser.add_argument("--slots", type=int, default=2, help="faults at a time")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the tests of one fault")
    return parser


def main() -> int:
    """Tries the chosen faults; returns the exit status."""
    options = _parser().parse_args()
    entries = json.loads(options.results.read_text()) if options.results.exists() else {}
    faults = _selection(options)
    names = {fault.name for fault in faults}
    if not (options.only or options.changed_since):
        entries = {name: entry for name, entry in entries.items() if name in names}
    keys = {fault.name: key(fault) for fault in faults}  # Computed from the same sources that are copied.
    waiting = [
        fault
        for fault in faults
        if not fault.equivalent
        and (options.again or entries.get(fault.name, {}).get("key") != keys[fault.name])
    ]
    waiting.sort(key=lambda fault: entries.get(fault.name, {}).get("outcome") == CAUGHT)
    for fault in faults:
        if fault.equivalent:
            entries[fault.name] = _entry(fault, keys[fault.name], EQUIVALENT)
    by = {name: entry.get("by", "") for name, entry in entries.items()}
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        results = runner.run(waiting, Path(scratch), options.slots, options.timeout, by)
        for result in tqdm(results, total=len(waiting), unit="fault"):
            entries[result.fault.name] = _entry(
                result.fault, keys[result.fault.name], result.outcome, result.by
            )
            _write(options.results, entries)
            tqdm.write(
                f"{result.outcome}: {result.fault.name}, {result.seconds} s, {result.by or result.fault.file}"
            )
            if result.outcome in (runner.TIMEOUT, runner.BROKEN):
                tqdm.write(result.log[-2000:])
    _write(options.results, entries)
    print(summary(entries))
    bad = sorted(name for name in names if entries[name]["outcome"] not in (CAUGHT, EQUIVALENT))
    print("\n".join(f"{entries[name]['outcome']}: {name}" for name in bad))
    return 1 if bad else 0


def _entry(fault: Fault, key: str, outcome: str, by: str = "") -> dict:
    entry = {"file": fault.file, "outcome": outcome, "by": by, "equivalent": fault.equivalent, "key": key}
    return {name: value for name, value in entry.items() if value}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
