"""Tests that `check`, `package` and the stock package checker accept runs of every closed preset.

The logs are what RunLog writes of a run's events, without training: the runs of a set meet their target in different
evaluations, one of them in the last that the preset allows.
"""

import hashlib

import pytest

from common.config.run_length import RunLength
from compliance.log import rules
from tests.compliance.preset_runs import packages_to_a_go, write_runs
from tests.compliance.test_package import head
from tests.test_presets import MLPERF, preset

CLOSED = [(benchmark, name) for benchmark, name in MLPERF if preset(benchmark, name).division == "closed"]
pytestmark = pytest.mark.usefixtures("fast_stock_checker")


def stops(config, runs):
    """The evaluation in which each run meets its target: the last, the first, and some between."""
    last = sum(1 for _ in RunLength.of(config).intervals()) - 1
    return [last, 0, *(last * n // runs for n in range(1, runs - 1))]


@pytest.mark.parametrize(("benchmark", "name"), CLOSED)
def test_runs_of_a_closed_preset_are_accepted(benchmark, name, tmp_path, source, caplog, capsys, monkeypatch):
    config = preset(benchmark, name)
    runs = rules.load(config.ruleset, rules.section_name(config.ruleset, "closed", benchmark))["runs"]
    weights = (
        {"file": "weights", "sha256": hashlib.sha256(b"").hexdigest()} if config.starts_from else "random"
    )
    facts = {"config_overrides": {}, "initial_weights": weights}
    options = [{"stop_at": stop} for stop in stops(config, runs)]
    place = write_runs(tmp_path / "results", config, head(source), monkeypatch, options, facts)
    packages_to_a_go(place, name, config.ruleset, source, caplog, capsys)
