"""Tests collectives of processes under horovod and multiworker, and their gradients, against numpy; error messages."""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.common.distributed.replicas import process_calls, processes
from tests.common.distributed.replicas import test_replicas as reference
from tests.common.distributed.replicas.process_calls import cases, inputs, upstream


@pytest.fixture(scope="module", params=[(b, n) for b in process_calls.BACKENDS for n in (2, 4)], ids=str)
def ran(request):
    """(backend, number of processes, the results of all calls in them)."""
    return *request.param, processes.run(
        request.param[0], request.param[1], process_calls.calls(*request.param), timeout=240
    )


def only(ran, backend):
    """(number of processes, results), of one backend."""
    if ran[0] != backend:
        pytest.skip(f"of {backend} alone")
    return ran[1:]


@pytest.fixture(scope="module")
def two_devices_each():
    """Two processes of two replicas."""
    calls = {
        "with_two_devices_each": process_calls.with_two_devices_each,
        **{
            d: functools.partial(process_calls.linear_collectives, "multiworker", 4, d)
            for d in ("float64", "bfloat16")
        },
        **{
            f.__name__: functools.partial(f, "multiworker", 4)
            for f in (process_calls.after_a_failed_trace, process_calls.outside)
        },
    }
    return processes.run("multiworker", 2, calls, timeout=240)


def check_linear(number, results):
    """Compares exactly, in whole numbers."""
    for key, groups, options, expected in cases(number):
        actual, gradient = zip(*(values[key] for values in results), strict=True)
        ups = [upstream(i, e.shape) for i, e in enumerate(expected)]
        probes, values = [inputs(number, 100 + seed) for seed in range(5)], inputs(number, 0)
        reference.check_linear(key[0], groups, options, values, actual, ups, gradient, probes, rtol=0)


def test_collectives_and_their_gradients(ran):
    backend, number, results = ran
    for dtype in process_calls.DTYPES[backend]:
        check_linear(number, [values for local in results[dtype] for values in local])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_collectives_of_processes_with_two_replicas(two_devices_each, dtype):
    check_linear(4, [values for local in two_devices_each[dtype] for values in local])


def test_dtypes_are_kept(ran):
    _, number, results = ran
    total = number * (number + 1) / 2
    for ends_of in results["dtypes"]:
        assert ends_of.pop("nan") == [True] * number
        for (name, dtype), ends in ends_of.items():
            moved = [1, 1] if dtype == "bool" else [1, number]
            assert ends == ([total] * 2 if name in ("all_reduce", "reduce_scatter") else moved), (name, dtype)


def test_collectives_in_loops(ran):
    for around, within, straight in ran[2]["in_loops"]:
        np.testing.assert_allclose(around, straight, rtol=1e-12)
        np.testing.assert_allclose(within, straight, rtol=1e-12)
        assert np.any(straight)


def test_keys_agree_after_a_failed_trace(ran, two_devices_each):
    number, results = only(ran, "multiworker")
    assert results["after_a_failed_trace"] == [[number]] * number
    assert two_devices_each["after_a_failed_trace"] == [[4.0, 4.0]] * 2


def check_outside(backend, number, results, local):
    total = float(sum(range(number)))
    for rank, actual in enumerate(results["outside"]):
        first = [100 * rank + i for i in range(2 * local)]
        assert actual == {
            # Multiworker's processes begin with the initial values of process 0; Horovod's with their own.
            "drawn": [7.0 + (rank if backend == "horovod" else 0)] * local,
            "all_reduce_max": [number // local - 1, 0, 7],
            "all_values": [[float(i)] * 2 for i in range(number)],
            "sum": [total],
            "gather": [float(i) for i in range(number)],
            "shared": [[total] * 2] * local,
            "data": [first[:local], first[local:]],
            "main": rank == 0,
            "processes": (rank, number // local),
        }


def test_outside_run(ran):
    check_outside(*ran, local=1)


def test_outside_run_with_two_replicas_in_a_process(two_devices_each):
    check_outside("multiworker", 4, two_devices_each, local=2)


def test_a_gradient_goes_through_a_loop_of_collectives(ran):
    number, results = only(ran, "horovod")
    matrix = np.full([number, number], 1 / number) + np.eye(number, k=-1)
    power = np.linalg.matrix_power(matrix, 10)
    values = np.stack(inputs(number, 1))
    for rank, (y, gradient) in enumerate(results["looped"]):
        np.testing.assert_allclose(y, np.tensordot(power[rank], values, 1), rtol=1e-10)
        np.testing.assert_allclose(gradient, np.full_like(gradient, power[:, rank].sum()), rtol=1e-10)


def test_many_collectives_at_once(ran):
    number, results = only(ran, "horovod")
    values = inputs(number, 2)
    for rank, actual in enumerate(results["many_at_once"]):
        pair = values[rank // 2 * 2] + values[rank // 2 * 2 + 1]
        expected = sum(range(1, 40, 2)) * sum(values) + sum(range(0, 40, 2)) * pair
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_collectives_of_constants_and_results_that_some_ignore(ran):
    number, results = only(ran, "horovod")
    for rank, (total, mine) in enumerate(results["constants_and_unused_results"]):
        assert total == 2 * number and mine.tolist() == [float(rank == number - 1)] * 3


def test_a_shift_sends_to_the_neighbor_alone(ran):
    number, results = only(ran, "horovod")
    for rank, (operations, actual) in enumerate(results["shifted"]):
        assert operations == ["HorovodAlltoall"]
        assert actual == {dtype: min(1, rank) if dtype == "bool" else rank for dtype in actual}


def test_a_gathering_of_different_sizes(ran):
    number, results = only(ran, "horovod")
    assert results["uneven"] == [[x for i in range(number) for x in range(i + 1)]] * number


def test_a_wrong_number_of_replicas_is_named_and_close_ends_it(ran):
    assert ran[2]["wrong_number"] == [None] * ran[1]


def test_without_a_launcher_it_names_one():
    code = (
        "from common.distributed import replicas; from common.config.schema import RunConfig\n"
        "try: replicas.make(RunConfig(replicas='horovod', num_replicas=2))\n"
        "except replicas.base.UserError as error: print(error)"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=processes.ROOT, env=environment, capture_output=True, text=True
    )
    assert "timetotrain launch --replicas=horovod" in done.stdout, done.stderr
