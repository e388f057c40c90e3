"""Tests lab/bench/gpu: a card's measurement in miniature on a CPU, its processes, its file."""

import dataclasses
import importlib
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common.config import benchmarks, overrides
from common.errors import UserError
from lab.bench.gpu import __main__ as main
from lab.bench.gpu import child, plan, prepare, report
from lab.bench.gpu.__main__ import unpacked
from lab.bench.gpu.child import Row, Turn
from lab.bench.harness import ROOT
from lab.bench.harness.figures import EXACT_FLAGS

PYTHON = os.environ.get("REPLAY_PYTHON") or (sys.executable if importlib.util.find_spec("jax") else "")
SMALL = {"global_batch_size": 8, "eval_batch_size": 8, "model": "mlp", "hidden_units": 32, "dropout": 0.2}


@pytest.fixture(scope="module")
def exports(tmp_path_factory) -> Path:
    """A folder as prepare.py packs it, of one small network, in float64 as small and as full size."""
    from common.export.write import write

    folder = tmp_path_factory.mktemp("gpu") / "exports"
    presets = importlib.import_module("mnist.presets").PRESETS
    config = dataclasses.replace(presets["cpu-tiny"], precision="fp64", **SMALL)
    task = importlib.import_module("mnist.task").Task(config.single_replica(), None)
    write(task, config, str(folder / "small/mnist"), "uncompiled", print, "train")
    llama = importlib.import_module("llama31_8b.presets").PRESETS["cpu-tiny"]
    for name, form in (("full", "plain"), ("fused", "blocks"), ("plain", "plain")):
        changes = {"precision": "bf16", "attention": form, "recompute": name == "full", "logit_chunks": 2}
        config = dataclasses.replace(llama, global_batch_size=2, **changes)
        task = importlib.import_module("llama31_8b.task").Task(config.single_replica(), None)
        write(task, config, str(folder / "llama" / name), "none", print, "train", values=False)
    (folder / "full").mkdir()
    (folder / "full/mnist").symlink_to("../small/mnist")
    return folder


def measured(exports: Path, folder: Path, *more: str) -> tuple[subprocess.CompletedProcess, dict]:
    command = [
        PYTHON,
        "-m",
        "lab.bench.gpu",
        str(exports),
        "--minutes=5",
        "--quick",
        f"--out={folder / 'card.json'}",
    ]
    command += [f"--scratch={folder / 'scratch'}", *more]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    return done, json.loads((folder / "card.json").read_text())


@pytest.mark.skipif(not PYTHON, reason="no jax here; install it, or set REPLAY_PYTHON")
def test_a_card_is_measured_and_gone_on_with(exports: Path, tmp_path: Path) -> None:
    only = ["--only", "ceilings", "c*/mnist", "step/*", "llama/*"]
    done, actual = measured(exports, tmp_path, *only)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert list(actual["rows"]) and set(actual["rows"]) == {
        "ceilings",
        "compile/mnist",
        "check/mnist",
        "step/mnist",
        "llama/attention",
        "llama/step",
    }
    attention, llama = actual["rows"]["llama/attention"], actual["rows"]["llama/step"]
    assert attention["equal"] and 0 < attention["gradient_error"]["relative"] < 0.02
    assert llama["loss_is_expected"] and llama["tokens_per_second"] > 0 and len(llama["ms_of_rounds"]) == 2
    check, step = actual["rows"]["check/mnist"], actual["rows"]["step/mnist"]
    assert check["equal"] and check["state_error"]["relative"] < 1e-9 and check["loss_error"] < 1e-9
    assert step["ms"] > 0 and step["from_cache"] and step["share_of_floor"] > 0
    assert actual["rows"]["compile/mnist"]["kernels"]
    again, second = measured(exports, tmp_path, *only)
    assert again.returncode == 0 and second["rows"] == actual["rows"], (
        "a row that is there is not measured again"
    )
    # What is not wanted is not there, and the file says what there was no time for.
    assert second["not_run"] == []
    out_of_time, third = measured(exports, tmp_path, "--only", "torch/*", "step/*", "--minutes=0")
    assert third["rows"] == actual["rows"]


def fake(folder: Path, text: str) -> str:
    """An interpreter that does what the shell's `text` says."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def ran(row: Row, python: str, seconds: float = 30.0) -> list[dict]:
    results: list[dict] = []
    child.run([row], 1, time.monotonic() + seconds, lambda _, result: results.append(result), python)
    return results


def test_a_process_that_hangs_loses_its_row(tmp_path: Path) -> None:
    row = Row("step/x", {}, 0.5)
    (result,) = ran(row, fake(tmp_path, "sleep 60"))
    assert result["error"] == "not done after 0 s" or "not done" in result["error"]
    # Waiting for the card is no part of its time, and measuring is.
    waits = """echo '{"at": "waiting"}'; sleep 1.5; echo '{"result": {"ms": 1}}'"""
    assert ran(row, fake(tmp_path, waits))[0]["ms"] == 1
    measures = """echo '{"at": "waiting"}'; echo '{"at": "measuring"}'; sleep 60"""
    assert "not done" in ran(row, fake(tmp_path, measures))[0]["error"]


def test_a_process_that_dies_says_why(tmp_path: Path) -> None:
    row = Row("step/x", {}, 30)
    dying = fake(tmp_path, "echo 'F0 Unknown flag in XLA_FLAGS: --nope' >&2; echo note >&2; exit 134")
    assert ran(row, dying)[0]["error"] == "exit status 134: F0 Unknown flag in XLA_FLAGS: --nope"


def test_at_the_deadline_rows_are_cut_or_not_begun(tmp_path: Path) -> None:
    rows, results = [Row(str(i), {}, 60) for i in range(3)], []
    python = fake(tmp_path, "sleep 60")
    child.run(rows, 1, time.monotonic() + 0.5, lambda row, result: results.append((row.name, result)), python)
    assert [name for name, _ in results] == ["0"] and results[0][1]["cut"]


def test_a_row_s_flags_are_added_to_the_environment_s(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--one=1")
    python = fake(tmp_path, """echo "{\\"result\\": {\\"flags\\": \\"$XLA_FLAGS\\"}}" """)
    assert ran(Row("x", {}, 30, flags="--two=2"), python)[0]["flags"] == "--one=1 --two=2"


def test_a_fake_card_has_every_part_and_is_gone_on_with(tmp_path: Path, monkeypatch) -> None:
    """The device is a script that answers at once; the first run has time for the first rows only."""
    for kind, names in prepare.KINDS.items():
        for name in names:
            (tmp_path / kind / name).mkdir(parents=True)
            (tmp_path / kind / name / "manifest.json").write_text("{}")
    (tmp_path / "photographs").mkdir()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(report, "described", lambda: {"nvidia_smi": {"name": "fake"}, "versions": {}})
    result = {"ms": 1.0, "examples_per_second": 1.0, "compile_seconds": 1.0, "batch": 256}
    counted = f"""echo x >> {tmp_path / "jobs"}; echo '{json.dumps({"result": result})}'"""

    def measure(python: str, seconds: float) -> report.Report:
        monkeypatch.setattr(child.sys, "executable", python)
        card = report.Report(tmp_path / "card.json")
        planned = plan.Plan(tmp_path, tmp_path, False)
        main.measure(planned, card, time.monotonic() + seconds, [])
        return card

    with monkeypatch.context() as patched:
        patched.setattr(main, "stages", lambda planned: iter([planned.ceilings(), planned.steps()]))
        measure(fake(tmp_path, counted), 60)
    first = len((tmp_path / "jobs").read_text().split())
    cut = measure(fake(tmp_path, "sleep 60"), 0.3)
    assert len(cut.rows) == first == 1 + len(prepare.FULL) and "train/mnist" in cut.not_run
    whole = measure(fake(tmp_path, counted), 300)
    assert len((tmp_path / "jobs").read_text().split()) == len(whole.rows) and not whole.not_run
    kinds = {
        "check": prepare.SMALL,
        "step": prepare.FULL,
        "train": [*prepare.SMALL],
    }
    kinds |= {"loop": ["photographs", "decoded"], "flax": plan.FLAX}
    for kind in ("torch", "torch_compiled"):
        assert f"{kind}/resnet" in whole.rows
    assert {f"{kind}/{name}" for kind, names in kinds.items() for name in names} <= set(whole.rows)


def test_checks_in_float64_keep_a_decay_out_of_cudnn(tmp_path: Path) -> None:
    for name in ("small/mnist", "full/mnist"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "manifest.json").write_text("{}")
    rows = {row.name: row.flags for row in plan.Plan(tmp_path, tmp_path, True).compiles_and_checks().rows}
    assert rows == {"compile/mnist": "", "check/mnist": EXACT_FLAGS["fp64"]}


def test_who_measures_is_alone(tmp_path: Path) -> None:
    code = "import sys; from lab.bench.gpu.child import Turn\nwith Turn(sys.argv[1]).alone():\n    input()"
    with Turn(tmp_path / "lock").together(), Turn(tmp_path / "lock").together():
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "lock")],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert json.loads(other.stdout.readline()) == {"at": "waiting"}
        assert not select.select([other.stdout], [], [], 0.5)[0], "it does not wait for those that compile"
    assert json.loads(other.stdout.readline()) == {"at": "measuring"}
    other.communicate("\n")


def test_a_step_s_floor_is_the_longer_of_bytes_and_products() -> None:
    ceilings = {"copy_gb_per_second": 4000.0, "product_tflops": 800.0}
    row = report.with_floor({"ms": 40.0, "compiler_gb_accessed": 80.0, "matrix_tflop": 8.0}, ceilings)
    assert (row["floor_ms"], row["floor_of"], row["share_of_floor"]) == (20.0, "bytes", 0.5)
    row = report.with_floor({"ms": 40.0, "compiler_gb_accessed": 8.0, "matrix_tflop": 8.0}, ceilings)
    assert (row["floor_ms"], row["floor_of"]) == (10.0, "products")
    assert "floor_ms" not in report.with_floor(
        {"ms": 1.0, "compiler_gb_accessed": 1.0, "matrix_tflop": 1.0}, {}
    )


def test_a_file_of_another_card_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(report, "described", lambda: {"nvidia_smi": {"name": "A"}, "versions": {}})
    report.Report(tmp_path / "a.json").add("step/x", {"ms": 1.0})
    assert report.Report(tmp_path / "a.json").done("step/x")
    monkeypatch.setattr(report, "described", lambda: {"nvidia_smi": {"name": "B"}, "versions": {}})
    with pytest.raises(UserError, match="'A'.*here.*'B'"):
        report.Report(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("[]")
    with pytest.raises(UserError, match="no file of lab.bench.gpu"):
        report.Report(tmp_path / "b.json")


def test_a_row_with_an_error_is_measured_again(tmp_path: Path) -> None:
    there = report.Report(tmp_path / "a.json")
    there.add("step/x", {"error": "exit status 1"})
    assert not report.Report(tmp_path / "a.json").done("step/x")


@pytest.mark.parametrize("kind", prepare.KINDS)
def test_exports_ask_for_fields_that_there_are(kind: str) -> None:
    for name, flags in prepare.KINDS[kind].items():
        system = next(flag.partition("=")[2] for flag in flags if flag.startswith("--system="))
        preset = benchmarks.module("llama31_8b" if kind == "llama" else name, "presets").PRESETS[system]
        config = overrides.override_all(preset, [flag for flag in flags if flag.startswith("--config.")])
        assert config.precision == {"full": "bf16", "small": "fp64", "llama": "bf16"}[kind]


def test_an_archive_is_unpacked_and_a_folder_without_exports_is_one_line(
    exports: Path, tmp_path: Path
) -> None:
    prepare.pack(exports, tmp_path / "exports.tar.xz")
    folder = unpacked(tmp_path / "exports.tar.xz", tmp_path / "scratch")
    assert plan.Plan(folder, tmp_path, True).small == ["mnist"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"nothing")
    for path, why in (("empty", "no export in full"), ("file", "make it anew"), ("nowhere", "no export")):
        with pytest.raises(UserError, match=why):
            unpacked(tmp_path / path, tmp_path / "scratch-2")


def test_a_script_that_unpacks_says_how_it_is_used() -> None:
    done = subprocess.run(
        ["lab/bench/gpu/tensorflow_parts.sh", "pack"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "unpack FOLDER" in done.stderr
