"""Tests python -m systems predict: output, speed of start, and one line for bad input."""

import json
import subprocess
import sys

import pytest

import systems
from common.config import benchmarks
from common.errors import UserError
from systems.predict import hardware
from timetotrain.forecast.cli import main
from timetotrain.forecast.workloads import predict, workload_of


def test_a_table_with_every_term_and_the_assumptions(capsys):
    assert main(["predict", "tsm_kinetics", "--system=summit-256"]) == 0
    out = capsys.readouterr().out
    for word in (
        "gradient sum",
        "weight update",
        "evaluation, host",
        "no interval: no scores of tsm_kinetics are published",
        "assumed: epochs: 100",
    ):
        assert word in out
    assert "73.99% top-1" in out


@pytest.mark.parametrize(
    "arguments, outside",
    [
        (["resnet", "--system=tpu-v3-2048"], None),
        (["gnmt", "--system=tpu-v3-1024"], None),
        (["resnet", "--system=tpu-v3-2048", "--model=alexnet_bn"], "alexnet_bn"),
        (["resnet", "--system=tpu-v4-128"], None),
        (["resnet", "--system=h100-8"], None),
        (["resnet", "--system=h100-8", "--model=alexnet_bn"], "alexnet_bn"),
        (["ptb", "--system=v100-8", "--epochs=5"], "ptb"),
        (["mnist", "--system=v100-8", "--epochs=5"], "mnist"),
    ],
)
def test_an_interval_is_given_for_what_was_tested_alone(arguments, outside, capsys):
    assert main(["predict", *arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["interval_seconds"] is None) == bool(outside)
    notes = [note for note in found["assumptions"] if "no interval" in note]
    assert bool(notes) == bool(outside) and all(f"{outside} are published" in note for note in notes)


@pytest.mark.parametrize(
    "nodes, note, interval",
    [
        (4, "replicas: all 32 cores; preset dgx-2h has 16", True),
        (
            1000,
            "a run on 512 of 8000 cores is outside the published runs",
            False,
        ),  # The batch does not divide.
    ],
)
def test_a_machine_without_a_preset_works_as_a_whole_or_says_that_it_does_not(
    nodes, note, interval, tmp_path, capsys
):
    path = tmp_path / "own.json"
    path.write_text(json.dumps({**systems.load("v100-8"), "number_of_nodes": str(nodes)}))
    assert main(["predict", "resnet", f"--system={path}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(note in assumed for assumed in found["assumptions"])
    assert (found["interval_seconds"] is not None) == interval


def test_more_replicas_than_accelerators_are_refused_with_the_nearest_batch(capsys):
    """The nearest preset has 512 replicas, which 96 GPUs do not hold."""
    assert main(["predict", "resnet", "--system=summit-16"]) == 2
    assert (
        capsys.readouterr()
        .err.strip()
        .endswith(
            "--batch=33280: preset dgx-2h-32 has 512 replicas, this machine 96 cores; give --batch=33312"
        )
    )
    for flags in (["--batch=33312"], ["--accelerators=96", "--batch=33312"]):
        assert main(["predict", "resnet", "--system=summit-16", *flags, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["workload"]["cores"], found["workload"]["batch"]) == (96, 33312)
        assert found["run_seconds"]["total"] == pytest.approx(9.94 * 60, rel=0.2)


@pytest.mark.parametrize("benchmark", ["resnet", "ssd", "maskrcnn", "transformer", "gnmt", "tsm_kinetics"])
def test_no_forecast_has_more_replicas_than_its_machine_has_cores(benchmark):
    for system in systems.names():
        try:
            answer = predict(benchmark, system, assume=True)
        except UserError as error:
            assert "give --batch=" in str(error) or "is none the model knows" in str(error)
            continue
        assert answer.work.cores <= answer.machine.cores, system


@pytest.mark.parametrize(
    ("epochs", "evaluations"), [(30, 1), (40, 1), (41, 2), (50, 2), (50.5, 3), (55, 3), (60, 4), (61, 5)]
)
def test_evaluations_of_ssd_s_rules_are_counted(epochs, evaluations):
    """After epochs 40, 50, 55, 60, ..."""
    work = workload_of(benchmarks.module("ssd", "presets").PRESETS["dgx-1"])
    assert work.evaluations(epochs) == evaluations


def test_a_size_that_nobody_built_is_simulated_and_said_so(capsys):
    flags = ["--accelerators=100000", "--batch=100000", "--simulate"]
    assert main(["predict", "resnet", "--system=dgx-1", *flags]) == 0
    out = capsys.readouterr().out
    assert "assumed: dgx-1: 100000 accelerators, where the largest of its kind has" in out
    assert "no interval" in out and "simulated:" in out
    assert main(["predict", "resnet", "--system=dgx-1", "--accelerators=100008", "--simulate"]) == 2
    assert "ends at 100000" in capsys.readouterr().err


def test_json_adds_up(capsys):
    assert main(["predict", "resnet", "--system=tpu-v3-2048", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for part in ("step_seconds", "run_seconds"):
        terms = dict(found[part])
        assert terms.pop("total") == pytest.approx(sum(terms.values()))
    low, high = found["interval_seconds"]
    assert low < found["run_seconds"]["total"] < high


def test_faults_are_simulated(capsys):
    flags = ["--jitter=0.02", "--mtbf=100", "--save=1", "--restart=20"]
    assert main(["predict", "resnet", "--system=tpu-v3-256", *flags]) == 0
    out = capsys.readouterr().out
    assert "of the closed form" in out and "Young" in out


def test_a_picture(tmp_path, capsys):
    path = tmp_path / "pod.png"
    assert main(["predict", "resnet", "--system=tpu-v3-2048", f"--plot={path}"]) == 0
    assert path.stat().st_size > 10_000
    assert main(["predict", "resnet", "--system=tpu-v3-2048", f"--plot={tmp_path}/no/such.png"]) == 2
    assert main(["predict", "resnet", "--system=tpu-v3-2048", f"--plot={tmp_path}/x.txt"]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_picture_leaves_json_alone(tmp_path, capsys):
    assert main(["predict", "resnet", "--system=tpu-v3-32", "--json", f"--plot={tmp_path}/x.png"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) and "Wrote" in err


def test_a_picture_without_matplotlib_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["predict", "resnet", "--system=tpu-v3-32", f"--plot={tmp_path}/x.png"]) == 2
    error = capsys.readouterr().err
    assert "needs matplotlib" in error and error.count("\n") == 1


def test_an_update_that_the_preset_does_not_shard_is_among_the_assumptions(capsys):
    """The published rows, to which the interval was fitted, are assumed to shard the update."""
    said = []
    for flags in ([], ["--weight-update-sharding"], ["--no-weight-update-sharding"]):
        assert main(["predict", "resnet", "--system=tpu-v3-32", "--json", *flags]) == 0
        said.append(any("to shard it" in a for a in json.loads(capsys.readouterr().out)["assumptions"]))
    assert said == [True, False, False]


def test_neither_tensorflow_nor_matplotlib_is_imported():
    code = (
        "import sys; from timetotrain.forecast.cli import main; main(['predict', 'ssd', '--system=tpu-v3-2048']); "
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'tf_keras', 'matplotlib', 'jax')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nonsense", "--system=tpu-v3-32"], "benchmark 'nonsense': unknown"),
        (["resnet", "--system=tpu-v3-33"], "did you mean tpu-v3-32"),
        (["resnet", "--system=/no/such.json"], "cannot read"),
        (["resnet", "--system=tpu-v3-2048", "--batch=32769"], "try --batch=32768"),
        (["resnet", "--system=tpu-v3-2048", "--batch=0"], "--batch=0: must be at least 1"),
        (["resnet", "--system=tpu-v3-2048", "--batch=-32768"], "--batch=-32768: must be at least 1"),
        (["resnet", "--system=tpu-v3-2048", "--accelerators=0"], "--accelerators=0: must be at least 1"),
        (["resnet", "--system=tpu-v3-2048", "--accelerators=8192"], "beyond the topology"),
        (["resnet", "--system=tpu-v3-2048", "--accelerators=1000"], "power of two"),
        (["resnet", "--system=tpu-v3-2048", "--accelerators=-1"], "at least 1"),
        (["ssd", "--system=dgx-1", "--accelerators=12"], "whole nodes"),
        (["ssd", "--system=tpu-v3-2048", "--partitions=3"], "does not divide"),
        (["ssd", "--system=tpu-v3-2048", "--partitions=0"], "--partitions=0: must be at least 1"),
        (["ssd", "--system=tpu-v3-2048", "--partitions=-4"], "--partitions=-4: must be at least 1"),
        (["resnet", "--system=tpu-v3-2048", "--span=-1"], "--span=-1: must be at least 0"),
        (["resnet", "--system=tpu-v3-2048", "--simulate", "--seed=-1"], "--seed=-1: must not be negative"),
        (["resnet", "--system=tpu-v3-2048", "--epochs=0"], "--epochs=0: must be a positive number"),
        (["resnet", "--system=tpu-v3-2048", "--span=17"], "--span=17"),
        (["resnet", "--system=tpu-v3-2048", "--epochs=-3"], "--epochs=-3"),
        (["resnet", "--system=tpu-v3-2048", "--epochs=nan"], "--epochs=nan"),
        (["resnet", "--system=tpu-v3-2048", "--model=resnet51"], "did you mean resnet50"),
        (["resnet", "--system=cpu-cluster-1024"], "accelerator_model_name: empty"),
        (["resnet", "--system=tpu-v3-2048", "--jitter=-1"], "--jitter=-1"),
        (["resnet", "--system=tpu-v3-2048", "--jitter=nan"], "--jitter=nan"),
        (["resnet", "--system=tpu-v3-2048", "--stragglers=1", "--slowdown=1e308"], "--slowdown=1e+308"),
        (["resnet", "--system=tpu-v3-2048", "--simulate", "--epochs=1e12"], "steps: the simulation takes"),
        (["resnet", "--system=tpu-v3-2048", "--stragglers=2"], "at most 1"),
        (["resnet", "--system=tpu-v3-2048", "--group=3"], "does not divide"),
        (["resnet", "--system=tpu-v3-2048", "--mtbf=0.0001"], "failures"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, words, capsys):
    assert main(["predict", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize("field", ["number_of_nodes", "accelerators_per_node", "accelerator_model_name"])
def test_a_missing_field_is_named_with_its_default(field, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("summit-8") | {field: ""}))
    assert main(["predict", "tsm_kinetics", f"--system={path}"]) == 2
    error = capsys.readouterr().err
    assert field in error and "--assume" in error
    assert main(["predict", "tsm_kinetics", f"--system={path}", "--assume", "--batch=384"]) == 0
    assert f"assumed: summit-8: {field}" in capsys.readouterr().out


@pytest.mark.parametrize("field", ["host_networking", "host_processor_vcpu_count"])
def test_a_default_that_was_taken_is_printed(field, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("summit-8") | {field: ""}))
    assert main(["predict", "tsm_kinetics", f"--system={path}"]) == 0
    assert field in capsys.readouterr().out


@pytest.mark.parametrize("text", ["1.5.3 GHz", "0 GHz", "0.0 GHz", "-1 GHz", ". GHz", "9" * 400 + " GHz"])
def test_an_invalid_frequency_is_one_line(text, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("summit-8") | {"accelerator_frequency": text}))
    assert main(["predict", "tsm_kinetics", f"--system={path}"]) == 2
    error = capsys.readouterr().err
    assert "accelerator_frequency" in error and "as in '1.53 GHz'" in error and error.count("\n") == 1


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000, '{"accelerator_model_name": 3}'])
def test_a_broken_description_is_one_line(content, tmp_path, capsys):
    path = tmp_path / "mine.json"
    path.write_text(content)
    assert main(["predict", "resnet", f"--system={path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("field", "text", "note"),
    [
        ("host_processor_vcpu_count", "9" * 5000, "host_processor_vcpu_count is not given"),
        ("host_networking", "9" * 400 + " x 100 Gbit/s InfiniBand", "host_networking gives no speed"),
        ("host_networking", "9" * 20_000, "host_networking gives no speed"),
        ("host_networking", "1 " * 10_000, "host_networking gives no speed"),
        ("host_networking", "4 x Mellanox 100 Gbit/s InfiniBand", ""),
    ],
)
def test_numbers_without_end_are_none(field, text, note):
    notes = []
    made = hardware.machine(systems.load("dgx-1") | {field: text}, None, notes)
    assert made.node_bandwidth == 50e9 and any(note in one for one in notes) == bool(note)
