"""Checks made-up trees with random damage: no traceback, no hang, little memory.

`make test` takes a few of them, `make e2e` a thousand, in a process of its own, whose memory is measured.
"""

import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from compliance.submission import cli_scores, summary, verdict
from compliance.submission.tree import judge_tree
from tests.compliance import submission_trees as trees

ROOT = Path(__file__).parents[2]
ROUNDS = ("v0.7", "v1.0", "v2.1", "v3.1", "v4.0", "v4.1", "v5.0", "v5.1")
NAMES = ("", ".x", "a b", "results", "systems", "result_1.txt", "x" * 200, "\udcff", "package_checker_params")
ODD_VALUES = (
    "null", "1e999", "9" * 5000, "-1", '"a"', "[" * 2000, "{}", "NaN", '"\\ud800"', "true", "[1]", '""',
)  # fmt: skip
SECONDS_EACH = 20


def plain(path):
    return path.is_file() and not path.is_symlink()


def damaged_text(draw, path):
    data = bytearray(path.read_bytes())
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(data) + 1)
        kind = draw.randrange(5)
        if kind == 0:
            del data[place : place + draw.randint(1, 400)]
        elif kind == 1:
            data[place:place] = draw.randbytes(draw.randint(1, 40))
        elif kind == 2:
            data[place:place] = data[: draw.randint(0, 2000)]
        else:
            at = data.find(b":", place)
            end = min(
                (spot for spot in (data.find(b",", at), data.find(b"}", at)) if spot > 0), default=at + 1
            )
            if at > 0:
                data[at + 1 : end] = draw.choice(ODD_VALUES).encode()
    path.write_bytes(bytes(data))


def damage(draw, org):
    """Changes one thing in a tree."""
    every = sorted(path for path in org.rglob("*") if path != org)
    if not every:
        return
    path = draw.choice(every)
    kind = draw.choice(
        ("text",) * 6 + ("remove", "move", "pipe", "link", "zero", "loop", "name", "copy", "empty")
    )
    if kind == "text":
        files = [file for file in every if plain(file)]
        if files:
            damaged_text(draw, draw.choice(files))
        return
    name = draw.choice(NAMES)
    if kind in ("remove", "pipe", "link", "zero", "loop", "empty"):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(draw.choice(every))
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(org)
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind in ("move", "name") and name and not (target := path.with_name(name)).exists():
        path.rename(target)
    elif kind == "copy" and path.is_dir() and len(every) < 60:
        target = path.with_name(path.name + "2")
        if not target.exists():
            shutil.copytree(path, target, symlinks=True, copy_function=_copy)


def _copy(source, target, **_):
    if plain(Path(source)):
        shutil.copyfile(source, target)


def one(seed):
    """Judges one damaged tree, and makes its table."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        logs = [trees.log(index) for index in range(draw.choice((1, 3, 10)))]
        org = trees.tree(folder, logs=logs, ruleset=draw.choice(ROUNDS))
        for _ in range(draw.randint(1, 4)):
            damage(draw, org)
        checker = None if draw.random() < 0.3 else careful  # None: the rules of the round
        outcome = judge_tree(org.parent if draw.random() < 0.2 else org, None, None, checker)
        assert outcome.verdict.answer in (verdict.GO, verdict.NO_GO, verdict.NOT_CHECKED)
        assert outcome.verdict.line
        systems = summary.systems(outcome)
        for ruleset in {row.submission.ruleset for row in systems}:
            rows = [summary.row(one, True) for one in systems if one.submission.ruleset == ruleset]
            assert len({tuple(row) for row in rows}) == 1
            cli_scores._text([row for row in systems if row.submission.ruleset == ruleset], ruleset)


def careful(paths, ruleset, division):
    """The verdicts of whole logs; a damaged log fails."""
    from compliance.findings import ERROR, finding
    from compliance.log.check_log import LogResult

    results = []
    for path in paths:
        try:
            results += trees.verdicts([path], ruleset, division)
        except UnicodeDecodeError:
            failed = finding("run_stop.status", ERROR, path, "", "")
            results.append(LogResult(str(path), ruleset or "5.0.0", [failed]))
    return results


def test_damaged_trees_have_a_verdict():
    for seed in range(25):
        one(seed)


@pytest.mark.e2e
def test_a_thousand_damaged_trees_take_little_memory_and_no_traceback():
    code = "from tests.compliance import test_fuzz_trees as fuzz; fuzz.main(1000)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=20 * 60
    )
    assert done.returncode == 0, done.stderr[-3000:]
    number, megabytes = map(int, done.stdout.split())
    assert number == 1000 and megabytes < 200


def main(count):
    """Judges `count` trees, each within its time; prints the number and the peak of memory in MB."""
    import signal

    for seed in range(count):
        signal.alarm(SECONDS_EACH)  # a hang ends the process
        try:
            one(seed)
        except BaseException:
            print("seed", seed, file=sys.stderr)
            raise
    signal.alarm(0)
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
