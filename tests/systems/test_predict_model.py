"""Tests systems predict: the terms against their definitions, the fit, the page, the event simulation."""

import dataclasses
import json
import math

import numpy as np
import pytest

from common.errors import UserError
from systems.predict import (
    collectives,
    compute,
    convergence,
    document,
    fitting,
    formulas,
    kernel_costs,
    model,
    published,
    simulate,
)
from systems.predict.answer import WhatIf
from timetotrain.forecast import presets, upkeep, workloads

FAULTLESS = simulate.Faults()


def test_a_kernel_takes_the_longer_of_arithmetic_and_traffic():
    machine = published.kinetics_machine(1)
    one = compute.Constants(matrix=0.5, memory=0.5, launch=1e-6, turnaround=0.0)
    rows = kernel_costs.Kernels.of([formulas.product((0, 1024), 4096, 4096), formulas.memory(1e6)])
    times = compute.seconds(rows, 8, machine, one, "bf16")
    flops = 2 * 8 * 1024 * 4096 * 4096
    full = compute.occupancy(1, 8192, 4096, 4096, machine)
    assert times[0] == pytest.approx(flops / full / (0.5 * machine.peak("bf16")) + 1e-6)
    assert times[1] == pytest.approx(8e6 / (0.5 * machine.memory_bandwidth) + 1e-6)


def test_occupancy_pads_to_tiles():
    row = next(r for r in published.tested() if r.family == "tpu-v3")
    tpu = published.machine_of(row)
    assert compute.occupancy(1, 1024, 128, 128, tpu) == 1
    assert compute.occupancy(1, 1024, 64, 128, tpu) == 1  # rows and columns swap
    assert compute.occupancy(1, 1024, 128, 64, tpu) == 0.5
    gpu = published.kinetics_machine(1)
    assert compute.occupancy(1, 128 * 80, 128, 256, gpu) == 1
    assert compute.occupancy(1, 128 * 81, 128, 256, gpu) == pytest.approx(81 / 160)


def test_a_partition_takes_whole_rows():
    """Of 38 rows on 4 cores, the busiest has ten."""
    rows = kernel_costs.Kernels.of(
        [formulas.product((0, 38 * 38), 256, 256), formulas.memory(1.0, kind="gather")]
    )
    assert compute.partition_shares(rows, 4).tolist() == [10 / 38, 1.0]
    assert compute.partition_shares(rows, 1).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("sharded", [False, True])
def test_the_update_moves_its_values(sharded):
    machine, values = published.kinetics_machine(1), fitting.constants("v100")
    shards = 6 if sharded else 1
    seconds = compute.update_seconds(machine, values, "adam", 10**9, 1, shards)
    moved = 7 * 4e9 / shards / (values.memory * 900e9)
    assert seconds == pytest.approx(moved + values.launch)


def test_bytes_on_the_wire_are_those_that_the_scaling_benchmark_counted():
    measured = json.loads((document.ROOT / "lab/bench/results/scaling.json").read_text())["exchange"]
    elements = kernel_costs.load("resnet50").parameters
    for place, variants in measured.items():
        for variant, found in variants.items():
            moved = document.exchange(variant, elements, int(place.split(", ")[1]))
            counted = (found["bytes_inside"], found["bytes_across"])
            assert (moved.inside, moved.across) == pytest.approx(counted, rel=1e-3), (place, variant)


def test_a_sum_costs_more_over_more_accelerators_and_none_alone():
    row = next(r for r in published.tested() if r.family == "tpu-v3")
    tpu = published.machine_of(row)
    times = [collectives.gradient_sum(tpu, 10**7, cores, 4, 4, 1) for cores in (1, 8, 128, 2048)]
    assert times[0] == 0 and times == sorted(times)
    assert collectives.gradient_sum(tpu, 10**7, 2048, 2, 2, 1) < times[-1]


def test_epochs_follow_the_law_they_were_drawn_from():
    batches = [256, 1024, 4096, 16384]
    curve = convergence.fit(batches, [30 * (1 + b / 8000) for b in batches])
    assert curve.least == pytest.approx(30, rel=0.01) and curve.critical == pytest.approx(8000, rel=0.02)
    low, high = curve.interval(4096)
    assert low < curve.epochs(4096) < high
    assert curve.interval(65536)[1] / curve.epochs(65536) > high / curve.epochs(4096)


def test_the_published_rows_are_all_there():
    rows = published.tested()
    assert len([r for r in rows if r.family == "tpu-v3"]) == 35
    assert len([r for r in rows if r.family == "v100"]) == 51
    for row in rows:
        work, machine = published.workload_of(row), published.machine_of(row)
        assert work.batch % work.replicas == 0 or row.org == "NVIDIA", row
        assert work.cores == machine.cores


def test_few_constants_and_all_of_them_possible():
    assert len(dataclasses.fields(compute.Constants)) <= 4
    for family in fitting.FAMILIES:
        values = fitting.constants(family)
        assert 0 < values.matrix < 1 and 0 < values.memory < 1 and 0 < values.launch < 1e-4


def test_a_committed_test_is_what_fitting_without_that_system_gives():
    key = "v0.6/tpu-v3-2048"
    rows = [r for r in published.tested() if r.family == "tpu-v3"]
    values = fitting.fit([r for r in rows if r.key != key], fitting.constants("tpu-v3"))
    for test in fitting.committed_tests():
        if test.row.key == key:
            assert fitting.seconds(test.row, values) == pytest.approx(test.seconds, rel=0.01)
            curve = convergence.curve(test.row.benchmark, "v0.6", key)
            assert curve.epochs(test.row.batch) == pytest.approx(test.epochs, rel=1e-3)


@pytest.mark.e2e
def test_the_committed_fit_is_what_the_code_gives():
    constants, left_out = fitting.refit()
    committed = fitting.committed()
    for family, found in constants.items():
        for name, value in found["constants"].items():
            assert value == pytest.approx(committed[family]["constants"][name], rel=0.02), (family, name)
    saved = fitting.left_out()[fitting.FORMULAS]
    assert [row[:2] for row in left_out] == [row[:2] for row in saved]
    for new, old in zip(left_out, saved):
        assert new[2:] == pytest.approx(old[2:], rel=0.02)


def test_errors_are_ratios_of_the_larger_to_the_smaller():
    row = published.tested()[0]
    tests = [fitting.Test(row, row.seconds * f, row.epochs, row.seconds / f) for f in (1.0, 1.5, 2.0)]
    assert fitting.summary(tests)["seconds"][0] == pytest.approx(0.5)
    assert fitting.summary(tests)["together"][0] == pytest.approx(0.5)


def test_epochs_without_a_batch_come_from_rows_of_other_batches():
    rows = [r for r in published.rows() if (r.benchmark, r.round) == ("gnmt", "v0.6") and r.batch != 8192]
    curve = convergence.curve("gnmt", "v0.6", "v0.7/of nobody", 8192.0)
    naive = convergence.fit([r.batch for r in rows], [r.epochs for r in rows])
    assert curve == naive and curve != convergence.curve("gnmt", "v0.6")
    tests = [t for t in fitting.committed_tests() if t.row.benchmark == "gnmt" and t.row.batch == 8192]
    wanted = [naive.epochs(8192.0) / t.row.epochs for t in tests if t.row.round == "v0.6"]
    found = fitting.stricter([t for t in tests if t.row.round == "v0.6"])
    assert found[0] == pytest.approx(np.median([max(r, 1 / r) for r in wanted]) - 1)


def test_rows_that_keep_a_twin_in_the_fit_are_counted():
    tests = fitting.committed_tests()
    alone = [t for t in tests if t.row.key == "v0.7/dgx2h_n64_ngc20.06_pytorch"]  # GNMT's only row of 16,384
    twins = [t for t in tests if (t.row.key, t.row.benchmark) == ("v0.6/tpu-v3-32", "transformer")]
    assert (fitting.shared(alone), fitting.shared(twins)) == (0, 1)


def test_the_verdict_names_each_goal_that_is_missed():
    good = (0.15, 0.40)
    assert document.verdict([good] * 4) == "met"
    text = document.verdict([(0.16, 0.3), good, (0.1, 0.41), (0.2, 0.5)])
    assert text == "**missed**: time (median), epochs without the batch (90th), together (median and 90th)"


def test_an_evaluation_of_the_comparison_is_one_of_the_preset_s():
    answer = workloads.predict("tsm_kinetics", "summit-256")
    work = published.kinetics_workload(256, 12288)
    assert (work.eval_examples, work.eval_batch) == (answer.work.eval_examples, answer.work.eval_batch)
    run = model.run(work, published.kinetics_machine(256), answer.constants, 100)
    assert run.evaluation == pytest.approx(answer.run.evaluation / answer.run.evaluations)


def test_the_page_is_what_the_code_writes():
    for path, text in upkeep.prediction_pages().items():
        assert path.read_text() == text, "run: python -m systems.predict docs"
    for picture in ("prediction-figures.png", "prediction-scores.png", "prediction-families.png"):
        assert (document.ROOT / "docs" / picture).stat().st_size > 10_000


@pytest.mark.parametrize("group, barriers", [(1, 1), (8, 106)])
@pytest.mark.parametrize("benchmark, system", [("resnet", "tpu-v3-2048"), ("tsm_kinetics", "summit-256")])
def test_without_faults_the_events_take_the_closed_form_s_time(benchmark, system, group, barriers):
    answer = workloads.predict(benchmark, system)
    result = simulate.simulate(answer.run, answer.machine.accelerators, FAULTLESS, 0, group, barriers)
    assert result.total == pytest.approx(answer.run.total, rel=1e-12)


def test_the_largest_of_many_is_drawn_from_its_distribution():
    rng = np.random.default_rng(0)
    drawn = simulate._largest(1000, 20_000, rng)
    naive = np.random.default_rng(1).standard_normal((2_000, 1000)).max(axis=1)
    assert drawn.mean() == pytest.approx(naive.mean(), abs=0.03)
    assert drawn.std() == pytest.approx(naive.std(), abs=0.03)


@pytest.mark.parametrize("slow", [0, 13])
def test_groups_wait_as_their_members_drawn_one_by_one_do(slow):
    """Compares workers drawn one by one, at every barrier, with the distribution of a group's sum."""
    workers, group, barriers, steps = 64, 8, 50, 300
    faults = simulate.Faults(jitter=0.02, stragglers=slow / workers, slowdown=1.1)
    fast = simulate.step_seconds(1.0, workers, faults, group, barriers, np.random.default_rng(0))
    rng, totals = np.random.default_rng(1), []
    for _ in range(steps):
        factor = np.ones(workers)
        factor[rng.permutation(workers)[:slow]] = 1.1
        parts = factor * (1 + 0.02 * math.sqrt(barriers) * rng.standard_normal((barriers, workers)))
        totals.append(parts.reshape(barriers, -1, group).max(axis=2).mean(axis=0).max())
    assert fast.mean() == pytest.approx(np.mean(totals), rel=0.01)


def test_failures_cost_what_they_lose():
    """Compares with a loop over steps that has the same failures."""
    durations = np.full(1000, 1.0)
    faults = simulate.Faults(mtbf=1.0, restart=10.0, save=0.5)
    timeline = simulate._Timeline(durations, 1 / 200, faults, 50.0, np.random.default_rng(3))
    rng, now, done, failures = np.random.default_rng(3), 0.0, 0, 0
    until = rng.exponential(200)
    kept = 0
    while done < 1000:
        cost = 1.0 + (0.5 if (done + 1) % 50 == 0 and done + 1 < 1000 else 0.0)
        if until < cost:
            now, failures, done = now + until + 10.0, failures + 1, kept
            until = rng.exponential(200)
            continue
        until, now, done = until - cost, now + cost, done + 1
        kept = done if done % 50 == 0 else kept
    assert timeline.failures == failures
    assert timeline.total == pytest.approx(now, rel=1e-9)


def test_a_hundred_thousand_accelerators_and_the_interval_near_young_s():
    answer = workloads.predict("tsm_kinetics", "summit-256")
    faults = simulate.Faults(jitter=0.03, stragglers=1e-4, mtbf=50_000, save=1.0, restart=20.0)
    run = dataclasses.replace(answer.run, steps=20_000.0, training=20_000 * answer.run.step.total)
    result = simulate.simulate(run, 100_000, faults, 0, 8, 106)
    assert result.total > result.closed and result.failures > 0
    assert result.young / 4 <= result.checkpoint <= 4 * result.young
    assert result.groups[1] < result.groups[8] < result.groups[32]
    with pytest.raises(UserError, match="100,000"):
        simulate.simulate(run, 100_001, faults)


def test_what_ifs_change_the_right_terms():
    """By formulas on both sides: a program has the update in its cycles."""

    def step(**changes):
        return workloads.predict("transformer", "tpu-v3-2048", WhatIf(formulas=True, **changes)).run.step

    usual = step(shard_update=True)
    assert step(shard_update=False).update > 100 * usual.update
    assert step(wire="bf16").gradient_sum < usual.gradient_sum
    ssd = workloads.predict("ssd", "tpu-v3-2048", WhatIf(formulas=True)).run.step
    alone = workloads.predict("ssd", "tpu-v3-2048", WhatIf(partitions=1)).run.step
    assert ssd.halo > 0 and ssd.imbalance > 0 and alone.halo == alone.imbalance == 0
    big = workloads.predict("resnet", "tpu-v3-2048", WhatIf(accelerators=4096, batch=65536))
    assert big.run.epochs > workloads.predict("resnet", "tpu-v3-2048").run.epochs
    low, high = big.interval
    assert low < big.run.total < high


def test_the_terms_add_up():
    run = workloads.predict("ssd", "tpu-v3-1024").run
    step = run.step
    assert sum(getattr(step, term) for term in step.TERMS) == pytest.approx(step.total)
    assert run.training == pytest.approx(run.steps * step.total)
    assert sum(step.kinds.values()) == pytest.approx(step.compute + step.imbalance)


def test_every_network_is_as_large_as_published():
    """Sources: docs/sources.md, mlperf 1 and 2; for forward multiply-adds the networks' papers."""
    expected = {
        "resnet50": (25.56, 4.1),
        "ssd": (None, None),
        "transformer_big": (210.8, None),
        "tsm": (24.3, 33),
    }
    for name, (parameters, macs) in expected.items():
        net = kernel_costs.load(name)
        if parameters:
            assert net.parameters / 1e6 == pytest.approx(parameters, rel=0.005)
        if macs:
            assert net.forward.flops_per_example / 2e9 == pytest.approx(macs, rel=0.05)
        assert 2.5 < net.train.flops_per_example / net.forward.flops_per_example <= 3.01


def test_every_preset_is_predicted_or_refused_in_one_line():
    from systems.predict.workload import BENCHMARKS

    predicted = 0
    for benchmark in BENCHMARKS:
        for name in presets.of(benchmark):
            try:
                assert workloads.predict(benchmark, name).run.total > 0
                predicted += 1
            except UserError as error:
                assert "accelerator_model_name" in str(error) and "\n" not in str(error), (benchmark, name)
    assert predicted > 40
