"""Tests power logs: energies beside the stock tool's own functions, and what the rules ask of readings."""

import io
import math
import os
import random
import time
from contextlib import redirect_stdout
from statistics import fmean

import pytest

from compliance.power import checks, power_logs
from compliance.power.energies import energies
from compliance.submission.runs import read_run
from compliance.submission.scores import score_directory
from compliance.submission.tree import judge_tree
from tests.compliance import result_logs, submission_trees
from tests.compliance.submission_trees import BENCHMARK, SYSTEM, record
from timetotrain.cli import main

START, SECONDS = 1000, 300  # of the made runs: run_start in ms, and their length


def log(seconds=SECONDS, watts=700, *, first=START - 5000, step=1000, spread=20, seed=0, gap=None, **said):
    """The text of a power log; `said`: efficiency, start, stop (False: none)."""
    noise = random.Random(seed)
    times = [first + step * n for n in range(1, round((seconds + 10) * 1000 / step))]
    times = [time for time in times if not gap or not gap[0] <= (time - START) / 1000 < gap[1]]
    lines = []
    if said.get("start") is not False:
        lines.append(record("power_measurement_start", None, said.get("start", first)))
    if "efficiency" in said:
        lines.append(record("conversion_eff", said["efficiency"], first, measurement_type="AC"))
    lines += [record("power_reading", watts + noise.uniform(-spread, spread), time) for time in times]
    if said.get("stop") is not False:
        lines.append(record("power_measurement_stop", None, said.get("stop", times[-1])))
    return "\n".join(lines) + "\n"


def folder(tmp_path, nodes=1, texts=None, runs=10, **described):
    """A tree of runs of `SECONDS`; `texts(run, node)`: the text of a power log, None for no file."""
    logs = [submission_trees.log(n, start=START, minutes=SECONDS / 60) for n in range(runs)]
    said = submission_trees.description(number_of_nodes=str(nodes), accelerators_per_node="1", **described)
    org = submission_trees.tree(tmp_path, logs=logs, described=said)
    place = org / "results" / SYSTEM / BENCHMARK
    for run in range(runs):
        for node in range(nodes):
            target = place / "power" / f"result_{run}" / f"node_{node}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            text = log(seed=100 * run + node) if texts is None else texts(run, node)
            if text is not None:
                target.write_text(text)
    return place


def found(place):
    """{rule: what it found} of the power logs."""
    findings = judge_tree(place.parents[2], log_checker=submission_trees.verdicts).findings
    return {one.rule: one.found for one in findings if one.rule.startswith("power.")}


# ------------------------------------------------------------------------------------------- energies


def read(tmp_path, text, name="node_0.txt"):
    path = tmp_path / name
    path.write_text(text)
    return power_logs.read(path)


def test_the_energy_is_the_sum_of_readings_times_the_time_since_the_one_before(tmp_path):
    lines = [record("power_measurement_start", None, 0), record("conversion_eff", 0.5, 0)]
    lines += [record("power_reading", watts, time) for time, watts in ((2000, 100), (3000, 300), (6000, 50))]
    one = read(tmp_path, "\n".join(lines))
    assert power_logs.energy(one, 0, 6000) == 0.5 * (100 * 2 + 300 * 1 + 50 * 3)
    assert power_logs.energy(one, 1000, 4000) == 0.5 * (100 * 1 + 300 * 1 + 50 * 1)
    assert power_logs.energy(one, 7000, 9000) is None
    switch = read(tmp_path, record("interconnect_power_est", 40, 0), "sw_0.txt")
    assert power_logs.energy(switch, 1000, 4000) == 120


STOCK_TEXTS = {
    "plain": log(), "efficiency": log(efficiency=0.94), "gaps": log(step=1700, gap=(50, 90)),
    "no stop": log(stop=False), "early stop": log(stop=START + 100_000),
    "late start": log(start=START + 50_000), "no start": log(start=False),
    "no length": log(stop=START - 5000), "disordered": "\n".join(reversed(log().splitlines())),
}  # fmt: skip


@pytest.mark.parametrize("name", STOCK_TEXTS)
def test_the_stock_energy_is_that_of_the_stock_summarizer(tmp_path, name):
    summarizer = pytest.importorskip(
        "mlperf_logging.result_summarizer.result_summarizer", reason="no mlperf-logging"
    )
    parser = pytest.importorskip("mlperf_logging.compliance_checker.mlp_parser", reason="no mlperf-logging")
    one = read(tmp_path, STOCK_TEXTS[name])
    with redirect_stdout(io.StringIO()):
        lines, _ = parser.parse_file(str(one.path), "5.0.0")
        try:
            theirs = summarizer._compute_power_node(lines, 250_000)
        except (ValueError, ZeroDivisionError):
            theirs = None
    ours = power_logs.stock_energy(one, 250_000)
    assert ours == theirs if theirs is None else ours == pytest.approx(theirs, rel=1e-12)
    text = record("conversion_eff", 0.9, 0) + "\n" + record("interconnect_power_est", 50, 1)
    switch = read(tmp_path, text, "sw_0.txt")
    lines, _ = parser.parse_file(str(switch.path), "5.0.0")
    theirs = summarizer._compute_power_sw(lines, 250_000)
    assert power_logs.stock_energy(switch, 250_000) == pytest.approx(theirs)


def test_the_score_takes_the_runs_that_the_time_s_score_takes():
    joules = [5.0, 1.0, 3.0, 9.0, 4.0]
    assert power_logs.olympic(joules, (0, 4)) == fmean([1.0, 3.0, 9.0])
    assert power_logs.olympic([None, *joules[1:]], (0, 4)) == fmean([1.0, 3.0, 9.0])
    assert power_logs.olympic([5.0, None, 3.0, 9.0, 4.0], (0, 4)) is None


# ------------------------------------------------------------------------------------------- what the rules ask


def test_sound_power_logs_get_no_word(tmp_path):
    assert found(folder(tmp_path)) == {}


@pytest.mark.parametrize(
    ("rule", "changes", "says"),
    [
        ("power.rate", {"step": 2000}, "0.50 readings a second of node_0, 2.0 s without one"),
        ("power.rate", {"gap": (100, 108)}, "9.0 s without a reading"),
        ("power.coverage", {"seconds": 250}, "behind the last reading"),
        ("power.coverage", {"first": 11_000, "seconds": 290}, "10.0 s of the run before the first reading"),
        ("power.clock", {"first": START - 5000 + 5 * 3_600_000}, "as if of another time zone (+5 h)"),
        ("power.clock", {"first": START - 5000 + 3_000_000}, "node_0 begins +2,996 s from run_start"),
        ("power.watts", {"watts": 7, "spread": 1}, "30 to 3,000 W expected of 1 accelerators"),
        ("power.watts", {"spread": 0}, "always 700 W"),
        ("power.efficiency", {"efficiency": 1.4}, "conversion_eff 1.4"),
        ("power.start", {"start": False}, "no start of node_0"),
        ("power.start", {"stop": START - 5000}, "not after its start"),
        ("power.few", {"step": 6000}, "51 readings of node_0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_readings_is_advice(tmp_path, rule, changes, says):
    place = folder(tmp_path, texts=lambda run, node: log(seed=run, **(changes if run == 3 else {})))
    assert says in found(place)[rule] and found(place)[rule].endswith("in result_3")


def test_a_described_wattage_narrows_what_is_plausible(tmp_path):
    place = folder(
        tmp_path, accelerator_model_name="H100-SXM5 (700 W)", texts=lambda run, node: log(watts=2000)
    )
    assert "70 to 1,750 W expected" in found(place)["power.watts"]


def test_readings_that_are_no_numbers_are_bad_ones(tmp_path):
    odd = [
        (9 * 10**399, 700), (2000, 9 * 10**399), (10**5000, 1), (1e300, 1), (2000, -1e300), (2000, math.inf),
    ]  # fmt: skip
    lines = [record("power_reading", watts, time) for time, watts in odd[:2] + odd[3:]]
    lines += ['x "time_ms": 1' + "0" * 400 + ', "key": "power_reading", "value": 1e999}' + ":::MLLOG"]
    one = read(tmp_path, "\n".join([*lines, record("power_reading", 300, 3000)]))
    assert one.readings == [(3000, 300)] and one.bad == len(lines)
    place = folder(tmp_path, texts=lambda run, node: "\n".join(lines) + "\n" + log(seed=run))
    assert found(place) == {}


def test_hostile_power_logs_take_no_time(tmp_path):
    begin = '"time_ms": 1, "key": "power_reading" ' * 20_000
    stops = "\n".join(record("power_measurement_stop", None, 1000) for _ in range(30_000))
    texts = [":::MLLOG " + begin, log(6000) + stops]
    began = time.process_time()
    first, second = (read(tmp_path, text) for text in texts)
    assert time.process_time() - began < 5
    assert first.bad == 1 and len(second.readings) > 5000 and second.at_stop == 1


def test_too_many_readings_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(power_logs, "MOST_READINGS", 400)
    place = folder(tmp_path, texts=lambda run, node: log(seed=run, step=500 if run == 3 else 1000))
    assert list(found(place)) == ["power.read"]
    assert "result_3/node_0.txt: more than 400 readings" in found(place)["power.read"]


def test_pipes_and_links_are_no_power_logs(tmp_path):
    place = folder(tmp_path)
    run = read_run(place / "result_3.txt")
    logs = place / "power" / "result_3"
    os.mkfifo(logs / "node_1.txt")
    (logs / "sw_0.txt").symlink_to(logs / "node_0.txt")
    assert [one.path.name for one in power_logs.of_run(run, place).logs] == ["node_0.txt"]
    logs.rename(tmp_path / "elsewhere")
    logs.symlink_to(tmp_path / "elsewhere")
    assert power_logs.of_run(run, place).logs == ()


def test_every_node_is_measured_and_none_is_a_copy(tmp_path):
    texts = {0: log(seed=1), 1: log(seed=2)}
    good = folder(tmp_path / "a", nodes=2, texts=lambda run, node: texts[node])
    assert list(found(good)) == ["power.nodes"] and "no log or estimate" in found(good)["power.nodes"]
    for run in range(10):
        estimate = record("interconnect_power_est", 100, START)
        (good / "power" / f"result_{run}" / "sw_0.txt").write_text(estimate)
    assert found(good) == {}
    copied = folder(tmp_path / "b", nodes=2, texts=lambda run, node: texts[0])
    assert "node_1 has the readings of node_0 in result_0" in found(copied)["power.copies"]
    few = folder(tmp_path / "c", nodes=2, texts=lambda run, node: None if node else texts[0])
    assert "1 logs of 2 nodes" in found(few)["power.nodes"]


def test_measured_switches_count_by_the_rules_and_not_for_the_stock_tool(tmp_path):
    place = folder(tmp_path)
    for run in range(10):
        (place / "power" / f"result_{run}" / "sw_0.txt").write_text(log(watts=100))
    row = energies(score_directory(place, "5.0.0"))
    assert row.by_rules[0] == pytest.approx(800 * SECONDS, rel=0.01)
    assert row.by_stock[0] == pytest.approx(700 * SECONDS, rel=0.01)
    assert "counts nothing for sw_0" in found(place)["power.energy"]


def test_idle_readings_around_a_run_make_the_two_energies_differ(tmp_path):
    lines = [record("power_reading", 100, START - 300_000 + 1000 * n) for n in range(295)]
    text = "\n".join([record("power_measurement_start", None, START - 300_000), *lines, log(start=False)])
    place = folder(tmp_path, texts=lambda run, node: text)
    assert "210 kJ by the rules, 122 kJ by the stock tool" in found(place)["power.energy"]


# ------------------------------------------------------------------------------------------- names, as the stock tool


NAMINGS = {
    "sound": lambda run: ["node_0.txt", "node_1.txt", "sw_0.txt"],
    "from one": lambda run: ["node_1.txt"],
    "one run from one": lambda run: ["node_1.txt" if run == 2 else "node_0.txt"],
    "no folder": lambda run: [] if run in (1, 2) else ["node_0.txt"],
    "fewer nodes": lambda run: ["node_0.txt"] if run in (4, 5) else ["node_0.txt", "node_1.txt"],
    "more switches": lambda run: ["node_0.txt", *(["sw_0.txt"] if run == 7 else [])],
    "other files": lambda run: ["node_0.txt", "notes.png"],
    "a picture": lambda run: ["node_1.txt", "nodes_1.png"],
}


@pytest.mark.parametrize("name", NAMINGS)
def test_names_are_refused_where_the_stock_checker_refuses_them(tmp_path, name):
    checker = pytest.importorskip("mlperf_logging.package_checker.power_checker", reason="no mlperf-logging")
    place = folder(tmp_path, texts=lambda run, node: None)
    for run in range(10):
        (place / "power" / f"result_{run}").rmdir()
        for file in NAMINGS[name](run):
            target = place / "power" / f"result_{run}" / file
            target.parent.mkdir(exist_ok=True)
            target.write_text(log(seed=run))
    logs = sorted(map(str, place.glob("result_*.txt")))
    _, theirs = checker.PowerChecker("5.0.0").check_power(str(place / "power"), logs)
    ours = checks.bad_names(place, logs)
    assert {f"result_{log.rpartition('_')[2][:-4]}" for log in ours} == theirs
    verdict = judge_tree(place.parents[2], log_checker=submission_trees.verdicts).verdict.answer
    assert verdict == ("no-go" if len(theirs) > 1 else "go")


def test_a_folder_without_any_power_log_is_refused(tmp_path):
    org = submission_trees.tree(tmp_path)
    (org / "results" / SYSTEM / BENCHMARK / "power").mkdir()
    outcome = judge_tree(org, log_checker=submission_trees.verdicts)
    assert outcome.verdict.answer == "no-go" and "power" in outcome.verdict.line


# ------------------------------------------------------------------------------------------- the scores


def test_scores_tell_both_energies_and_what_is_remarkable(tmp_path, capsys):
    place = result_logs.write_results(tmp_path, "resnet", minutes=10)
    for one in sorted(place.glob("result_*.txt")):
        target = place / "power" / one.stem / "node_0.txt"
        target.parent.mkdir(parents=True)
        watts = 500 if one.stem == "result_1" else 700
        target.write_text(log(600, first=round(read_run(one).run_start) - 5000, watts=watts))
    measured = energies(score_directory(place))
    # All runs take ten minutes: the first and last are left out.
    assert measured.score == pytest.approx(fmean(measured.by_rules[1:4])) and measured.remarks == ()
    assert measured.stock_score == pytest.approx(measured.score, rel=0.01)
    main(["scores", str(place)])
    said = next(line for line in capsys.readouterr().out.splitlines() if "energy" in line)
    assert said.endswith(f"resnet: {measured.line}")
    assert f"energy {measured.score / 1000:,.1f} kJ by the rules" in said
    (place / "power" / "result_3" / "node_0.txt").rename(place / "power" / "result_3" / "node_7.txt")
    assert "names of the power logs of 1 of 5 runs" in energies(score_directory(place)).line
