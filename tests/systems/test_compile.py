"""Tests the command with a compiler that answers from a file: reports, series, pages, and what fails."""

import importlib.util
import json
import multiprocessing
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from common.errors import UserError
from systems.compile import document, run, series, store, worker
from systems.compile.targets import kind_of_preset, target
from tests.systems.test_compile_hlo import PROGRAM
from timetotrain.machines import compile as command
from timetotrain.machines import presets
from timetotrain.machines.command import main

Answer = Callable[[dict], list[str]]
RAW = {
    "compile_seconds": 1.0,
    "compiler_gigabytes": 0.5,
    "memory": {"argument": 600, "output": 500, "alias": 400, "temp": 300, "generated_code": 200},
    "cost": {"optimal_seconds": 0.25},
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnext", "--system=tpu-v3-32"], "'resnext' is not a benchmark (did you mean resnet?)"),
        (["resnet", "--system=tpu-v3-33"], "--system=tpu-v3-33: unknown"),
        (["resnet", "--system=tpu-v3-33", "--", "--config.seed=1"], "--system=tpu-v3-33: unknown"),
        (["resnet", "--system=cpu-tiny"], "has no TPU or GPU to compile for"),
        (["resnet", "--system=tpu-v3-32", "--target=tpu-v9"], "--target=tpu-v9: unknown"),
        (["all", "resnet"], "'resnet': a second benchmark is not taken"),
        (["all", "--program=evil"], "--program: invalid choice: 'evil'"),
        (["all", "--target=a100"], "--target: for one preset; give its --system"),
        (["all", "--", "--config.seed=1"], "flags after `--`: for one preset"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["compile", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.fixture
def exported(tmp_path: pathlib.Path) -> pathlib.Path:
    """An export of one program, as `--export` writes it."""
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "train.mlir.bc").write_bytes(b"artifact")
    images = {"name": "image", "role": "input", "shape": [4, 2], "dtype": "bfloat16"}
    program = {
        "name": "train", "file": "train.mlir.bc", "inputs": [images], "arguments": [images], "results": [],
    }  # fmt: skip
    about = {"num_replicas": 8, "state": [], "constants": [], "programs": [program]}
    (folder / "manifest.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def answer(exported: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Takes the compiler's answer; puts `exported` in place of exports, and PROGRAM of texts; returns the calls."""
    calls: list[str] = []

    def export(benchmark, system, folder, flags, say, programs):
        shutil.copytree(exported, folder)
        return json.loads((folder / "manifest.json").read_text())

    def answers(raw: dict) -> list[str]:
        def child(artifact, program, target, replicas, scratch):
            calls.append(target.topology)
            (scratch / "program.txt").write_text(PROGRAM)
            return raw

        monkeypatch.setattr(run, "export", export)
        monkeypatch.setattr(run, "compiler_python", lambda platform: "python")
        monkeypatch.setattr(run, "_in_child", child)
        monkeypatch.setattr(run, "versions", lambda platform: dict.fromkeys(("jaxlib", "libtpu"), "0"))
        monkeypatch.setattr(run.compiled, "__defaults__", (tmp_path / "results", None, ""))
        monkeypatch.setattr(series.keep, "__defaults__", ((), tmp_path / "results"))
        return calls

    return answers


def test_a_report_is_kept_by_program_and_not_compiled_again(
    answer: Answer, capsys: pytest.CaptureFixture
) -> None:
    calls = answer(RAW)
    arguments = ["compile", "resnet", "--system=tpu-v3-128", "--target=tpu-v3"]
    assert main([*arguments, "--json"]) == 0 and main(arguments) == 0
    assert calls == ["v3:2x2"]
    output = capsys.readouterr().out
    report = json.loads(output[: output.index("\n}\n") + 2])["train"]
    assert report["needed_bytes"] == 600 + 500 - 400 + 300 + 200 and report["fits"]
    assert report["estimated_ms"] == pytest.approx(172 / 940e3, abs=1e-3) and report["optimal_ms"] == 250.0
    assert report["argument_bytes"] == {"input": 16}
    assert "over 4 x 2" in output and "compiled before" not in output


def test_what_does_not_compile_is_a_finding(answer: Answer, capsys: pytest.CaptureFixture) -> None:
    answer({"error": "RESOURCE_EXHAUSTED: out of memory"})
    assert main(["compile", "resnet", "--system=tpu-v3-128"]) == 1
    assert "does not compile: RESOURCE_EXHAUSTED" in capsys.readouterr().out


def test_a_program_that_cannot_be_read_has_its_memory(
    answer: Answer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    answer(RAW | {"unread": "INTERNAL: async-update"})
    assert main(["compile", "resnet", "--system=tpu-v3-128"]) == 0
    output = capsys.readouterr().out
    assert "fits" in output and "not read    the optimized program's text: INTERNAL: async-update" in output
    record = {"benchmark": "resnet", "system": "s", "kind": "tpu-v6e", "replicas": 8, "programs": {}}
    report = {"unread": "no", "needed_bytes": 2**20, "device_bytes": 2**21, "fits": True}
    monkeypatch.setattr(series, "reports", lambda *_: {"train": report})
    row = next(line for line in document._tpus([record], tmp_path).splitlines() if "`s`" in line)
    assert "| 1 of 2 | yes | not read |" in row


def test_the_worker_says_why_a_text_cannot_be_read(tmp_path: pathlib.Path) -> None:
    class Executable:
        def hlo_modules(self) -> list:
            raise RuntimeError("INTERNAL: async-update\nmore")

    assert worker._write_text(Executable(), tmp_path / "text") == "INTERNAL: async-update"
    assert not (tmp_path / "text").exists()


def test_flags_after_the_options_reach_the_export(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with flags of its own is not the preset's, so it leaves the preset's record alone."""
    answer(RAW)
    flags = []
    export = run.export
    monkeypatch.setattr(run, "export", lambda *words: flags.append(words[3]) or export(*words))
    monkeypatch.setattr(series, "keep", lambda *_: pytest.fail("the preset's record"))
    for arguments in (["resnet", "--system=tpu-v3-32"], ["--system=tpu-v3-32", "resnet"]):
        assert main(["compile", *arguments, "--", "--config.seed=1"]) == 0
    assert flags == [["--config.seed=1"]] * 2


def test_a_series_goes_on_where_it_was_stopped_and_makes_the_page(
    answer: Answer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, exports = tmp_path / "results", []
    calls = answer(RAW)
    copied = run.export

    def export(benchmark, system, *rest):
        exports.append(system)
        if system == "tpu-v3-1024":
            raise UserError("ssd --system=tpu-v3-1024: the export fails: no")
        return copied(benchmark, system, *rest)

    monkeypatch.setattr(run, "export", export)
    series_ = list(presets.to_compile(("ssd",)))
    names = [system for _, system, _ in series_]
    assert series.compile_all(series_, "train", False, print, results) == 1
    assert sorted(exports) == sorted(names) and "cpu-tiny" not in names
    # One program for one kind of device and number of replicas.
    kinds = {kind for _, _, kind in series_}
    assert len(calls) == len(kinds)
    assert series.compile_all(series_, "train", False, print, results) == 1 and len(exports) == len(names)
    assert series.compile_all(series_, "train", True, print, results) == 1
    assert len(exports) == 2 * len(names) and len(calls) == len(kinds)
    page = document.render(list(presets.to_compile()), results)
    assert "- ssd `tpu-v3-1024`: ssd --system=tpu-v3-1024: the export fails: no" in page
    assert "| ssd `tpu-v3-2048` | train | tpu-v3 | 8 |" in page and "- gnmt `" in page


def test_an_export_that_fails_keeps_what_was_compiled_before(
    answer: Answer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, fails = tmp_path / "results", []
    answer(RAW)
    copied = run.export

    def export(*words):
        if fails:
            raise UserError("ended by signal 9")
        return copied(*words)

    monkeypatch.setattr(run, "export", export)
    one = [("ssd", "tpu-v3-32", "tpu-v3")]
    assert series.compile_all(one, "train", False, print, results) == 0
    compiled = set(store.read("ssd", results).programs)
    (report,) = store.read("ssd", results).programs.values()
    other = report | {"digest": "other"}
    store.put_program("ssd", other, results)
    before, fails = series.record_of("ssd", "tpu-v3-32", results), ["now"]
    assert series.compile_all(one, "eval", True, print, results) == 1
    assert series.record_of("ssd", "tpu-v3-32", results) == before | {"error": "ended by signal 9"}
    assert set(store.read("ssd", results).programs) == compiled | {store.name_of(other)}
    fails = []
    assert series.compile_all(one, "train", True, print, results) == 0
    assert series.record_of("ssd", "tpu-v3-32", results) == before
    assert set(store.read("ssd", results).programs) == compiled


def test_a_step_that_xla_cannot_compile_is_one_line(
    answer: Answer, exported: pathlib.Path, capsys: pytest.CaptureFixture
) -> None:
    answer(RAW)
    (exported / "manifest.json").write_text(json.dumps({"programs": [], "refused": {"eval": "Where: no"}}))
    assert main(["compile", "resnet", "--system=tpu-v3-128", "--program=eval"]) == 2
    assert capsys.readouterr().err == "error: --program=eval: not exported: Where: no\n"


def test_every_result_belongs_to_a_preset() -> None:
    assert len(store.benchmarks()) >= 6
    for benchmark in store.benchmarks():
        data = store.read(benchmark)
        names = {name for record in data.presets.values() for name in record.get("programs", {}).values()}
        assert names == set(data.programs), benchmark


def test_kept_results_name_the_presets_of_today() -> None:
    """A prediction takes the kind of device and the lengths of batches from the record, not from the preset."""
    for benchmark in store.benchmarks():
        for system, record in store.read(benchmark).presets.items():
            config = presets.load(benchmark)[system]
            assert (record["benchmark"], record["kind"]) == (benchmark, kind_of_preset(config))
            assert tuple(record.get("lengths", ())) == tuple(getattr(config, "bucket_limits", ()))


def test_the_lengths_of_an_export_s_batches_are_kept(
    answer: Answer, exported: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    answer(RAW)
    manifest = json.loads((exported / "manifest.json").read_text()) | {"config": {"bucket_limits": [8, 16]}}
    (exported / "manifest.json").write_text(json.dumps(manifest))
    record = series.compile_preset("gnmt", "tpu-v3-32", "tpu-v3", "train", print, tmp_path / "results")
    assert record["lengths"] == [8, 16]
    assert series.record_of("gnmt", "tpu-v3-32", tmp_path / "results") == record


def test_processes_that_write_at_once_keep_each_other_s_results(tmp_path: pathlib.Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_keep_some, args=(tmp_path, number)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    data = store.read("ssd", tmp_path)
    assert len(data.presets) == 40 and len(data.programs) == 40
    assert [place.name for place in tmp_path.iterdir()] == ["ssd.jsonl"]
    lines = (tmp_path / "ssd.jsonl").read_text().splitlines()
    assert lines == [*sorted(lines[:40]), *sorted(lines[40:])] and '"preset"' in lines[39]


def _keep_some(results: pathlib.Path, writer: int) -> None:
    for number in range(10):
        report = {"digest": f"{writer}{number}", "target": "v100", "replicas": 1, "compiler": "jaxlib-0"}
        store.put_program("ssd", report, results)
        store.put_preset({"system": f"v100-{writer}{number}", "benchmark": "ssd"}, results)


def test_a_damaged_line_of_results_is_one_line(tmp_path: pathlib.Path) -> None:
    (tmp_path / "ssd.jsonl").write_text('{"preset": {"system": "v100-8"}}\n{"program": {"digest": "0"}}\n')
    with pytest.raises(UserError, match=r"ssd\.jsonl: line 2 is not a result .*; restore the file"):
        store.read("ssd", tmp_path)


def test_a_compiler_of_too_much_memory_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GIGABYTES", 0.001)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert run._watched(child) > 0.001 and child.returncode < 0


def test_an_export_that_the_system_ended_names_the_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    done = subprocess.CompletedProcess([], -9, "", "train: lowering\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(UserError, match="^ssd --system=v100-8: .* by signal 9: too little memory[?]$"):
        run.export("ssd", "v100-8", tmp_path, [], print)


def test_a_missing_compiler_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: name if name == "jax" else None)
    monkeypatch.setattr(run, "COMPILERS", tmp_path)
    with pytest.raises(UserError, match="run `make aot`, which needs no device"):
        run.compiler_python("tpu")
    (tmp_path / "libtpu").mkdir()
    assert run.compiler_python("tpu") == sys.executable


def test_a_small_program_compiles_for_a_pod(tmp_path: pathlib.Path) -> None:
    """Through the real compiler, where this environment has it (`make aot`)."""
    try:
        run.compiler_python("tpu")
    except UserError as error:
        pytest.skip(str(error))
    if not importlib.util.find_spec("jax"):
        pytest.skip("needs jax to write a program")
    import jax
    from jax import export

    program_bytes = export.export(jax.jit(lambda a: a @ a), platforms=["tpu"])(
        jax.ShapeDtypeStruct((256, 256), "bfloat16")
    )
    (tmp_path / "train.mlir.bc").write_bytes(program_bytes.mlir_module_serialized)
    program = {
        "name": "train",
        "file": "train.mlir.bc",
        "inputs": [],
        "arguments": [{"name": "a", "shape": [256, 256], "dtype": "bfloat16"}],
        "results": [{"updates": None}],
    }
    manifest = {"num_replicas": 32, "state": [], "constants": [], "programs": [program]}
    report = run.compiled(tmp_path, manifest, program, target("tpu-v3", 32), print, tmp_path / "results")
    assert "error" not in report and report["fits"] and report["cycles"]["total"] > 0
    assert command.lines("train", report)
