"""Tests predictions from compiled programs: reader, step, fit, logs' blocks, and the tables of the page."""

import dataclasses

import pytest

from systems.compile import store
from systems.compile.targets import kind_of_preset, target
from systems.predict import (
    blocks,
    compiled,
    document_programs,
    evaluation,
    fitting,
    kernel_costs,
    model,
    program_fit,
    published,
    workload,
)
from systems.predict import report as tables
from systems.predict.answer import WhatIf
from systems.predict.compiled import Scale, Scaled
from systems.predict.torus import Torus
from timetotrain.forecast import presets, workloads
from tools import published_blocks

SCALE = Scale(cycles=0.8, link=0.8, turnaround=0.5)
ALL = {"operation": "all-reduce", "groups": 1, "group_size": 2048, "strategy": "StrategyND", "count": 2}
NORM = {"operation": "all-reduce", "groups": 256, "group_size": 8, "strategy": "", "count": 98}
SHIFT = {"operation": "collective-permute", "groups": 2048, "group_size": 2, "strategy": "", "count": 10}


def report(matrix=18.8e6, other=9.4e6, unknown=0, **changes):
    return {
        "topology": "v3:32x32",
        "replicas": 2048,
        "needed_bytes": 10**9,
        "device_bytes": 16 * 2**30,
        "cycles": {
            "total": matrix + other,
            "by_kind": {"matrix": matrix, "other": other},
            "loops_of_unknown_length": unknown,
        },
        "collectives": [{**ALL, "bytes": 102e6}, {**NORM, "bytes": 4e5}, {**SHIFT, "bytes": 1e6}],
    } | changes


@pytest.fixture
def results(tmp_path):
    """A folder of results, and a function that gives a preset its programs."""

    def keep(benchmark, system, replicas, **programs):
        names = {}
        for name, content in programs.items():
            kept = {"digest": name, "target": system, "compiler": "libtpu-0", "replicas": replicas} | content
            store.put_program(benchmark, kept, tmp_path)
            names[name] = store.name_of(kept)
        config = presets.of(benchmark)[system]
        record = {"benchmark": benchmark, "system": system, "kind": kind_of_preset(config)}
        record |= {"replicas": replicas, "programs": names}
        record |= {"lengths": list(getattr(config, "bucket_limits", ()))}
        store.put_preset(record, tmp_path)
        return compiled.load.__wrapped__(benchmark, system, tmp_path)

    return keep


def pod():
    row = next(r for r in published.tested() if (r.key, r.benchmark) == ("v0.6/tpu-v3-2048", "resnet"))
    return row, published.workload_of(row), published.machine_of(row)


def test_a_program_is_read_with_its_cycles_and_its_exchange(results):
    program = results("resnet", "tpu-v3-2048", 2048, train=report())
    _, _, machine = pod()
    assert program.kinds() == pytest.approx({"matrix": 0.02, "other": 0.01})  # At 940 MHz.
    torus = Torus.of("v3:32x32", "tpu-v3", machine.chip, 0.8)
    found = program.exchange(machine, 0.8)
    terms = ("gradient_sum", "batch_norm", "halo")
    for term, row in zip(terms, report()["collectives"], strict=True):
        assert found[term] == pytest.approx(torus.seconds(row, 2048))
    assert program.needed == (10**9, 16 * 2**30) and program.evaluation(machine, SCALE) is None


def test_tpu_v6e_has_programs_where_the_compiler_s_text_can_be_read():
    """918 TFLOP/s of four multipliers of 256 x 256 are 1,751 MHz."""
    for benchmark, system in (
        ("resnet", "tpu-v6e-16"),
        ("resnet", "tpu-v6e-256"),
        ("transformer", "tpu-v6e-256"),
    ):
        program = compiled.load(benchmark, system)
        (_, train), *_ = program.train
        assert sum(program.kinds().values()) == pytest.approx(train["cycles"]["total"] / 1751e6)
        answer = workloads.predict(benchmark, system)
        assert answer.made.program == program and answer.interval
    assert compiled.load("transformer", "tpu-v6e-16") is None
    assert target("tpu-v6e", 1).megahertz * 1e6 * 4 * 2 * 256**2 == pytest.approx(918e12, rel=1e-3)
    assert target("tpu-v5p", 1).megahertz * 1e6 * 8 * 2 * 128**2 == pytest.approx(459e12, rel=1e-3)


def test_what_does_not_compile_is_no_program(results):
    assert results("resnet", "tpu-v3-2048", 2048, train={"error": "does not compile"}) is None


def test_a_preset_without_a_record_has_no_program(tmp_path):
    assert compiled.load.__wrapped__("resnet", "tpu-v3-2048", tmp_path) is None
    assert compiled.load.__wrapped__("resnet", "v100-8", tmp_path) is None


def test_an_evaluation_comes_from_its_own_program_where_that_is_known(results):
    _, work, machine = pod()
    batch = report(matrix=9.4e6, other=0, collectives=[])
    program = results("resnet", "tpu-v3-2048", 2048, train=report(), eval=batch)
    assert program.evaluation(machine, SCALE) == pytest.approx(0.8 * 0.01)
    made = Scaled(program, SCALE)
    net, values = kernel_costs.load("resnet50"), fitting.constants("tpu-v3")
    found = evaluation.device_seconds(work, net, machine, values, made)
    assert found == pytest.approx(0.008 * -(-work.eval_examples // work.eval_batch))
    unknown = results("resnet", "tpu-v3-2048", 2048, train=report(), eval=report(unknown=1))
    formula = evaluation.device_seconds(work, net, machine, values)
    assert evaluation.device_seconds(work, net, machine, values, Scaled(unknown, SCALE)) == formula


def test_buckets_count_around_the_mean_length_and_orientations_alike(results):
    """GNMT's buckets end at 10, 20, 30, 40 and 48 tokens; sentences have 34 on average."""
    lengths = {f"train-{i}": report(matrix=9.4e5 * (i + 1), other=0) for i in range(5)}
    program = results("gnmt", "tpu-v3-1024", 1024, **lengths)
    assert [share for share, _ in program.train] == pytest.approx([0.6, 0.4])
    assert program.kinds()["matrix"] == pytest.approx(0.6 * 0.003 + 0.4 * 0.004)
    ways = {"train-0": report(matrix=9.4e6, other=0), "train-1": report(matrix=18.8e6, other=0)}
    assert results("maskrcnn", "tpu-v3-256", 256, **ways).kinds()["matrix"] == pytest.approx(0.015)


def test_a_step_from_a_program_is_its_cycles_and_its_exchange(results):
    _, work, machine = pod()
    made = Scaled(results("resnet", "tpu-v3-2048", 2048, train=report()), SCALE)
    one = model.step(work, machine, fitting.constants("tpu-v3"), made)
    assert one.compute == pytest.approx(0.8 * 0.03) and one.update == one.imbalance == 0
    moved = made.program.exchange(machine, 0.8)
    assert one.gradient_sum + one.batch_norm + one.halo == pytest.approx(sum(moved.values()))
    assert one.total == pytest.approx(one.compute + sum(moved.values()) + one.input_wait)


def test_a_run_from_a_program_takes_starts_and_evaluations_from_the_logs(results):
    row, work, machine = pod()
    made = Scaled(results("resnet", "tpu-v3-2048", 2048, train=report()), SCALE)
    run = model.run(work, machine, fitting.constants("tpu-v3"), row.epochs, made)
    assert run.start == pytest.approx(max(blocks.start("resnet", "v0.6"), 0)) and run.host == 0
    assert run.turnaround == pytest.approx((run.evaluations + 1) * 0.5)
    assert run.program == "resnet tpu-v3-2048"
    formulas = model.run(work, machine, fitting.constants("tpu-v3"), row.epochs)
    assert not formulas.program and formulas.start < run.start


def test_what_waits_for_an_evaluation_pays_each_and_else_the_last():
    _, work, _ = pod()
    waits = workload.as_logged(dataclasses.replace(work, benchmark="maskrcnn", recipe="v0.7"))
    assert waits.blocking and waits.whole_evaluation
    assert evaluation.host_seconds(waits, 18) == pytest.approx(18 * blocks.evaluation("maskrcnn", "v0.7"))
    beside = workload.as_logged(dataclasses.replace(work, benchmark="maskrcnn", recipe="v0.6"))
    assert evaluation.host_seconds(beside, 18) == blocks.evaluation("maskrcnn", "v0.6")


def test_the_answer_says_where_its_step_comes_from(results, monkeypatch):
    program = results("resnet", "tpu-v3-2048", 2048, train=report())
    monkeypatch.setattr(compiled, "load", lambda benchmark, system: program)
    monkeypatch.setattr(program_fit, "scale", lambda: SCALE)
    monkeypatch.setattr(program_fit, "errors", lambda: {"seconds": [0.1, 0.2]})
    answer = workloads.predict("resnet", "tpu-v3-2048")
    assert answer.path == "compiled program (resnet tpu-v3-2048)"
    assert answer.as_dict()["memory_bytes"] == {"needed": 10**9, "device": 16 * 2**30}
    assert answer.as_dict()["estimated_seconds"]["cycles"] == pytest.approx(0.03)  # Without the factor.
    assert "30.00 ms of cycles" in tables.table(answer) and "954 of 16384 MiB a core" in tables.table(answer)
    assert workloads.predict("resnet", "tpu-v3-2048", WhatIf(formulas=True)).path == "formulas"
    changed = workloads.predict("resnet", "tpu-v3-2048", WhatIf(batch=65536))
    assert changed.path == "formulas" and any("--formulas" in note for note in changed.notes)
    assert workloads.predict("resnet", "tpu-v3-2048", WhatIf(epochs=70)).made


def test_a_fit_finds_the_constants_that_made_the_times(results, monkeypatch):
    made = {}
    for benchmark in ("resnet", "ssd", "transformer"):
        for cores in (512, 1024, 2048):
            name = f"tpu-v3-{cores}"
            made[benchmark, name] = results(benchmark, name, cores, train=report(matrix=5e9 / cores))
    monkeypatch.setattr(program_fit, "program_of", lambda row: made.get((row.benchmark, row.preset)))
    values = fitting.constants("tpu-v3")
    rows = [r for r in published.tested() if r.round == "v0.6" and (r.benchmark, r.preset) in made]
    scale = Scale(cycles=0.7, link=program_fit._START.link, turnaround=1.5)
    exact = [
        dataclasses.replace(r, seconds=fitting.seconds(r, values, None, Scaled(made[r.benchmark, r.preset], scale)))
        for r in rows
    ]  # fmt: skip
    found = program_fit.fit(exact, values, each=False)
    assert found.cycles == pytest.approx(0.7, rel=0.01) and found.turnaround == pytest.approx(1.5, rel=0.02)
    own = program_fit.fit(exact, values, each=True)
    assert own.benchmarks == pytest.approx(dict.fromkeys(("resnet", "ssd", "transformer"), 0.7), rel=0.01)
    assert own.of("gnmt", "tpu-v3") == own.cycles == found.cycles


def test_every_row_names_a_preset_of_its_batch():
    from common.config import benchmarks

    without = 0
    for row in (*published.tested(), *published.held_out()):
        if not row.is_tpu:
            assert not row.preset
        elif row.preset:
            config = benchmarks.module(row.benchmark, "presets").PRESETS[row.preset]
            assert config.global_batch_size == row.batch, row
        else:
            without += 1
    assert without == 3  # SSD on 4,096 cores and the Transformer's two of 8,192.


def test_the_committed_tests_are_what_the_committed_constants_predict():
    """Without a factor of their own, the constants of all TPU v3 rows predict TPU v4's."""
    scale = dataclasses.replace(program_fit.scale(), v4=1.0)
    for kind in (program_fit.EACH, program_fit.NONE):
        for test in program_fit.committed_tests(kind):
            program = program_fit.program_of(test.row)
            assert program, f"{test.row}: no program; run `python -m systems.predict fit`"
            if kind == program_fit.EACH:
                continue
            seconds = fitting.seconds(test.row, fitting.constants("tpu-v3"), None, Scaled(program, scale))
            assert seconds == pytest.approx(test.seconds, rel=1e-3), test.row


def test_the_tables_have_every_row():
    tests = program_fit.committed_tests()
    assert document_programs.rows().count("\n") == (len(tests) + 3 if tests else 0)
    assert document_programs.periods().count("\n") == len(blocks.rows()) + 1


def test_every_system_is_left_out_and_the_tables_say_so(results, monkeypatch):
    """The whole way from programs to the page's tables, with programs that are made up."""
    made = {}
    for row in (*published.tested(), *published.held_out()):
        if row.preset and row.benchmark in ("resnet", "ssd"):
            program = results(
                row.benchmark, row.preset, 2048, train=report(matrix=2e6 * row.batch / row.accelerators)
            )
            made[row.benchmark, row.preset] = program
    monkeypatch.setattr(program_fit, "program_of", lambda row: made.get((row.benchmark, row.preset)))
    monkeypatch.setattr(program_fit, "_formulas", lambda rows, start: start)
    entry, saved = program_fit.refit(fitting.constants("tpu-v3"))
    assert set(entry["constants"]["benchmarks"]) == {"resnet", "ssd"} and entry["rows"] == 16
    tests = {kind: program_fit.tests_of(rows) for kind, rows in saved.items()}
    assert len(tests[program_fit.EACH]) == 22  # With six rows of TPU v4.
    committed = fitting.committed()
    committed = {**committed, "tpu-v3": {**committed["tpu-v3"], "programs": entry}}
    monkeypatch.setattr(fitting, "committed", lambda: committed)
    monkeypatch.setattr(program_fit, "scale", lambda: Scale(**entry["constants"]))
    monkeypatch.setattr(program_fit, "committed_tests", lambda kind=program_fit.EACH: tests[kind])
    assert document_programs.constants().splitlines()[-1].startswith("| 16 |")
    table = document_programs.errors().splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == [
        "**TPU v3**", "resnet", "ssd", "**TPU v4**", "TPU v4, by TPU v3's constants",
    ]  # fmt: skip
    assert document_programs.rows().count("\n") == 22 + 3
    assert document_programs.largest().startswith("Off by more than a quarter")
    assert document_programs.periods().count("no program") == len(blocks.rows()) - 22


V06 = """:::MLL {at:.1f} {key}: {{"value": null, "metadata": {{}}}}
"""
V07 = """noise :::MLLOG {{"time_ms": {ms}, "key": "{key}", "value": null, "metadata": {{}}}}
"""


def _log(path, line, events):
    path.mkdir(parents=True)
    text = "".join(line.format(at=at, ms=int(at * 1000), key=key) for at, key in events)
    (path / "result_0.txt").write_text(text)


def test_blocks_of_a_log(tmp_path):
    """A block every 10 s after a first one of 14; ResNet-50 evaluates inside them."""
    starts = [(100, "run_start"), *((t, "block_start") for t in (100, 114, 124, 134)), (144, "run_stop")]
    _log(tmp_path / "a/Google/results/tpu-v3-32/resnet", V06, starts)
    waits = [(0, "run_start"), (20, "block_start"), (21, "eval_start"), (24, "eval_accuracy")]
    for at in (34, 48, 62):
        waits += [(at, "block_start"), (at + 1, "eval_start"), (at + 4, "eval_accuracy")]
    _log(tmp_path / "b/Google/results/tpu-v4-16-TF/transformer", V07, waits)
    rows = list(published_blocks.rows({"v0.6": tmp_path / "a", "v0.7": tmp_path / "b"}))
    assert rows == [
        ("v0.6", "tpu-v3-32", "resnet", "10.000", "4.000", ""),
        ("v0.7", "tpu-v4-16-TF", "transformer", "14.000", "9.000", "3.000"),
    ]


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert published_blocks.main([str(tmp_path), str(tmp_path)]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.e2e
def test_the_committed_fit_is_what_the_code_gives():
    entry, saved = program_fit.refit(fitting.constants("tpu-v3"))
    committed = fitting.committed()["tpu-v3"].get("programs")
    assert (entry is None) == (committed is None), "run: python -m systems.predict fit"
    if entry:
        for name, value in committed["constants"]["benchmarks"].items():
            assert entry["constants"]["benchmarks"][name] == pytest.approx(value, rel=0.02)
    kept = fitting.left_out()
    for kind, rows in saved.items():
        assert [row[:2] for row in rows] == [row[:2] for row in kept[kind]]
        for new, old in zip(rows, kept[kind], strict=True):
            assert new[2:] == pytest.approx(old[2:], rel=0.02)
