"""Tests `run --power`: sensors of a made-up /sys, the log in the rounds' form, and who reads it."""

import itertools
import types

import pytest

from compliance.api import check
from compliance.power import power_logs
from compliance.power.energies import energies
from compliance.report import page
from compliance.submission.scores import score_directory
from tests.compliance import submission_trees
from timetotrain.run import power


def zone(root, place, name, energy="0", wrap="1000000"):
    (root / place).mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", energy), ("max_energy_range_uj", wrap)):
        (root / place / file).write_text(text + "\n")
    return root / place / "energy_uj"


def test_packages_and_memory_count_once_and_counters_start_again(tmp_path):
    package = zone(tmp_path, "intel-rapl:0", "package-0", "900000")
    zone(tmp_path, "intel-rapl:0:0", "core", "5")
    zone(tmp_path, "intel-rapl:0:1", "dram", "2000000")
    zone(tmp_path, "intel-rapl:1", "psys", "7")
    zone(tmp_path, "intel-rapl:2", "package-1", "no number", "none")
    first, memory = power.rapl(tmp_path)
    assert (first(), memory()) == (0.9, 2.0)
    package.write_text("100000")
    assert first() == pytest.approx(1.1)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(power, "_EVERY", 0.01)


def test_a_run_has_a_power_log_of_watts(tmp_path, quick, monkeypatch):
    clock = itertools.count(0, 0.5)
    monkeypatch.setattr(power, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    joules = itertools.count(0, 50)
    monitor = power.Monitor(tmp_path / "result_3.txt", [lambda: next(joules)])
    monitor.start()
    monitor.stop()
    assert monitor.path == tmp_path / "power_in_band" / "result_3" / "node_0.txt"
    log = power_logs.read(monitor.path)
    assert log.bad == 0 and {watts for _, watts in log.readings} == {100.0}
    assert log.start <= log.readings[0][0] <= log.readings[-1][0] <= log.stop
    assert '"informative"' in monitor.path.read_text()


def test_without_a_sensor_there_is_one_line_and_no_file(tmp_path):
    monitor = power.Monitor(tmp_path / "result_0.txt", [])
    monitor.start()
    monitor.stop()
    assert monitor.line(0, 1) == power.NONE and not list(tmp_path.iterdir())


def test_a_sensor_that_fails_does_not_end_the_run(tmp_path, quick):
    def gone():
        raise OSError("gone")

    monitor = power.Monitor(tmp_path / "result_0.txt", [gone])
    monitor.start()
    monitor.stop()
    assert monitor.line(0, 1).startswith("power    none")


def in_band(tmp_path):
    """A folder of runs with readings of 100 W."""
    org = submission_trees.tree(tmp_path)
    place = org / "results" / submission_trees.SYSTEM / submission_trees.BENCHMARK
    for log in sorted(place.glob("result_*.txt")):
        target = place / power_logs.IN_BAND / log.stem / "node_0.txt"
        target.parent.mkdir(parents=True)
        index = int(log.stem.split("_")[1])
        start = 1000 + index * 10_000_000
        record = submission_trees.record
        lines = [record("power_measurement_start", None, start), record("informative", True, start)]
        lines += [record("power_reading", 100.0, start + 60_000 * n) for n in range(1, 60)]
        target.write_text("\n".join(lines) + "\n")
    return org, place


def test_scores_read_it_as_informative(tmp_path):
    _, place = in_band(tmp_path)
    measured = energies(score_directory(place, "5.0.0"))
    assert measured.by_rules[0] == pytest.approx(100 * 60 * 30) and measured.by_stock[0] is None
    assert "informative" in measured.line


def test_report_shows_it_and_check_and_logs_do_not_change(tmp_path):
    org, place = in_band(tmp_path)
    outcome = check([org])
    assert not [one for one in outcome.findings if "power" in one.rule] and len(outcome.logs) == 10
    text = page.page([page.card_of(place, outcome)], outcome)
    assert "kJ" in text and "informative" in text
