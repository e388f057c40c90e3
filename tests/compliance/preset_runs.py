"""Writes a set of runs of a preset, without training, and packages it for both checkers."""

import dataclasses
import time

import systems
from compliance.api import check
from compliance.log.engine import StreamChecker
from compliance.verdict import GO
from tests.benchmarks import scripted_log
from tests.compliance.test_package import call_for
from tests.compliance.test_package_any import stock_says
from timetotrain.run import results as records


def write_runs(folder, config, commit, monkeypatch, runs, facts):
    """Writes logs and run.json as timetotrain/run/recorder.py does; `runs`: the options of each log."""
    monkeypatch.setattr(records, "git_state", lambda: {"commit": commit, "dirty": False})
    place, start = folder / config.system / config.benchmark, time.time()
    described = {**systems.load(config.hardware), "submitter": ""}
    for index, options in enumerate(runs):
        run = dataclasses.replace(config, seed=index, submission_org="Example")
        log = place / f"result_{index}.txt"
        checker = StreamChecker(run.ruleset, run.benchmark, run.division)
        scripted_log(run, log, start=start + 60 + index, checker=checker, facts=facts, **options)
        record = records.describe_run(run, ["python", "-m", run.benchmark], described, facts)
        records.update_run_json(place, log, record | {"hardware": config.hardware})
    return place


def packages_to_a_go(place, name, ruleset, source, caplog, capsys):
    """Asserts that the runs and their package are a go, also for the stock checker; returns what is printed."""
    results = place.parents[1]
    org = results.parent / "out" / "Example"
    outcome = check(sorted(place.glob("result_*.txt")))
    assert (outcome.findings, outcome.verdict.answer) == ([], GO)
    assert call_for(name, results, org.parent, source) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    outcome = check([org], packaging=True)
    assert (outcome.findings, outcome.verdict.answer) == ([], GO)
    assert stock_says(org, ruleset, caplog) and "does not comply" not in caplog.text
    return printed
