"""Walks the numbers that verdicts and scores read: one that is not a number there never softens a verdict or a score.

A case replaces one value, metadata entry or time of a log by another kind, or writes it twice. `log_cases` and
`tree_cases` list all cases; the tests draw from them.
"""

import functools
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compliance.api import check
from compliance.log.engine import StreamChecker
from compliance.log.logs import parse_all
from compliance.submission import summary
from tests.compliance import llama_logs, made_logs

TWICE = "twice"
KINDS = {
    "null": "null", "text": '"12"', "true": "true", "list": "[1]", "NaN": "NaN", "Infinity": "Infinity",
    "-Infinity": "-Infinity", "negative": "-3", "huge": "1e300", "long": "9" * 30, TWICE: "",
}  # fmt: skip
SLOW = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
CASES = tuple(made_logs.every_case())


def places(record):
    """Where a record has what a checker may read as a number: its time, its value, its metadata."""
    numbers = [name for name, value in record["metadata"].items() if isinstance(value, (int, float))]
    return [("time_ms",), ("value",), *(("metadata", name) for name in numbers)]


def mutated(record, place, kind):
    """The line of a record with one number changed."""
    changed = json.loads(json.dumps(record))
    holder = changed if len(place) == 1 else changed["metadata"]
    old, holder[place[-1]] = json.dumps(holder[place[-1]]), "@"
    new = f'{old}, "{place[-1]}": 77' if kind == TWICE else KINDS[kind]
    return ":::MLLOG " + json.dumps(changed).replace('"@"', new)


# ------------------------------------------------------------------------------------------------------- logs


def passes(case, lines):
    """Whether a log has no error."""
    checker = StreamChecker(case[0])
    findings = [
        finding
        for number, line in enumerate(lines, 1)
        for record in parse_all(line, number)
        for finding in checker.feed(record)
    ]
    return not any(finding.severity == "error" for finding in [*findings, *checker.finish()])


@functools.cache
def missed(case):
    """The records of a log of a benchmark of a round that is valid but misses its target; None if it has no target."""
    for worst in (0.0, 1e6):
        records = made_logs.log(*case)
        for record in records:
            if record["key"] == "eval_accuracy":
                fields = record["value"] if isinstance(record["value"], dict) else None
                record["value"] = dict.fromkeys(fields, worst) if fields else worst
        if not passes(case, [":::MLLOG " + json.dumps(record) for record in records]):
            return records
    return None


def log_cases(case):
    """(index of the record, place, kind) of every change of a log."""
    for index, record in enumerate(missed(case) or ()):
        for place in places(record):
            yield from ((index, place, kind) for kind in KINDS)


def softened(case, change):
    index, place, kind = change
    lines = [":::MLLOG " + json.dumps(record) for record in missed(case)]
    lines[index] = mutated(missed(case)[index], place, kind)
    return passes(case, lines)


@settings(SLOW, max_examples=150)
@given(st.data())
def test_no_broken_number_makes_a_log_pass_that_misses_its_target(data):
    case = data.draw(st.sampled_from([case for case in CASES[::6] if missed(case)]))
    change = data.draw(st.sampled_from(list(log_cases(case))))
    assert not softened(case, change), (case, change)


# ------------------------------------------------------------------------------------------------------ trees

RULESETS = ("4.0.0", "5.0.0", "5.1.0", "6.0.0")
FAST = 3072  # samples to converge: the score of such runs is scaled


def write_tree(folder, samples=FAST):
    """A submitter's folder whose ten runs converge after `samples` samples; returns its logs."""
    texts = (llama_logs.log(index).replace(str(llama_logs.SAMPLES), str(samples)) for index in range(10))
    return sorted(llama_logs.tree(folder / "Other_Lab", texts).rglob("result_*.txt"))


def judged(org, ruleset):
    """(the verdict, minutes, factor) of a tree of one folder."""
    outcome = check([org], ruleset)
    (row,) = summary.systems(outcome)
    (result,) = row.results.values()
    return outcome.verdict.answer, result.card.score, result.card.scaling


def tree_cases(text):
    """(line number, record, place, kind) of every change of a log."""
    for number, line in enumerate(text.splitlines()):
        record = json.loads(line.removeprefix(":::MLLOG "))
        for place in places(record):
            yield from ((number, record, place, kind) for kind in KINDS)


def is_softer(path, ruleset, change, before):
    """Whether a tree with one changed number is a go where it was none, or has a better score or factor."""
    number, record, place, kind = change
    text = path.read_text()
    lines = text.splitlines()
    lines[number] = mutated(record, place, kind)
    path.write_text("\n".join(lines) + "\n")
    try:
        verdict, minutes, factor = judged(path.parents[3], ruleset)
    finally:
        path.write_text(text)
    if verdict != "go":
        return False
    return before[0] != "go" or minutes is None or minutes < before[1] - 1e-9 or factor < before[2] - 1e-9


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """{round: (logs, judgment)} of a tree that is a go and scaled."""
    paths = write_tree(tmp_path_factory.mktemp("walk"))
    found = {ruleset: (paths, judged(paths[0].parents[3], ruleset)) for ruleset in RULESETS}
    assert all(before[0] == "go" and before[2] > 1 for _, before in found.values()), found
    return found


@settings(SLOW, max_examples=60)
@given(data=st.data())
def test_no_broken_number_softens_the_score_of_a_tree(trees, data):
    ruleset = data.draw(st.sampled_from(RULESETS))
    paths, before = trees[ruleset]
    change = data.draw(st.sampled_from(list(tree_cases(paths[4].read_text()))))
    assert not is_softer(paths[4], ruleset, change, before), (ruleset, change)
