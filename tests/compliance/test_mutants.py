"""Tests a valid log of every benchmark of every round, and faults in its required keys, beside the stock checker.

TTT_FUZZ=full makes faults in every required key; without it in two keys of a log.
"""

import os
import random

import pytest

from compliance.log.check_log import check_log
from compliance.log.find_round import required
from lab.bench.harness import stock_checker
from tests.compliance import made_logs

FULL = os.environ.get("TTT_FUZZ") == "full"
CASES = list(made_logs.every_case())
OWN = ("tsm_kinetics", "mnist", "ptb")
# Only here are these errors (docs/compliance-differences.md).
STRICTER = {"line-field", "line-key-twice", "run.reversed", "init.reversed", "run_stop.status",
            "run_stop.target-after", "submission_org.value", "submission_platform.value"}  # fmt: skip


@pytest.fixture(autouse=True)
def quick_stock(monkeypatch):
    stock_checker.keep_rules(monkeypatch.setattr)


def both(path, records, ruleset):
    path.write_text(made_logs.lines(records))
    return check_log(str(path), ruleset), stock_checker.verdict(path, ruleset)


def ids(case):
    return "-".join(part for part in case if part)


@pytest.mark.parametrize("case", [case for case in CASES if case[2] not in OWN], ids=ids)
def test_both_checkers_pass_a_valid_log_of_every_benchmark(case, tmp_path):
    ours, (theirs, messages) = both(tmp_path / "log.txt", made_logs.log(*case), case[0])
    assert theirs == "pass", messages
    assert ours.passes, [finding for finding in ours.findings if finding.severity == "error"]


def faults(records, key, rng):
    """(name, records) of each fault in the first record of a key."""
    at = next(place for place, record in enumerate(records) if record["key"] == key)
    record, rest = records[at], [other for other in records if other["key"] != key]
    moved = [*records[:at], *records[at + 1 :]]
    yield "removed", rest
    yield "repeated", [*records, record]
    yield "repeated with another value", [*records, {**record, "value": "other"}]
    for value in ("x", None, -1, 1e9, [], {}, True):
        yield f"value {value}", [*records[:at], {**record, "value": value}, *records[at + 1 :]]
    yield "no metadata", [*records[:at], {**record, "metadata": {}}, *records[at + 1 :]]
    yield "first", [record, *moved]
    yield "last", [*moved, record]
    place = rng.randrange(len(moved) + 1)
    yield "moved", [*moved[:place], record, *moved[place:]]


@pytest.mark.timeout(3600)
def test_a_fault_in_a_required_key_gets_the_stock_verdict(tmp_path):
    rng = random.Random(20261124)
    path, tried, different = tmp_path / "log.txt", 0, []
    for case in CASES:
        if case[2] in OWN:
            continue
        records = made_logs.log(*case)
        keys = sorted(
            {record["key"] for record in records}
            & (required(*case[:3]) | {"block_start", "weights_initialization"})
        )
        for key in keys if FULL else rng.sample(keys, 2):
            cases = list(faults(records, key, rng))
            for name, changed in rng.sample(cases, 5 if FULL else 3):
                ours, (theirs, messages) = both(path, changed, case[0])
                tried += 1
                errors = {finding.rule for finding in ours.findings if finding.severity == "error"}
                if ours.passes != (theirs == "pass") and not (theirs == "pass" and errors & STRICTER):
                    different.append((ids(case), key, name, theirs, messages[:1], sorted(errors)))
    assert tried > 500
    assert not different, (len(different), different[:20])
