"""Tests why one run takes longer than another: the terms are the log's, and add up to the difference."""

import itertools
import json

import pytest

from common.errors import UserError
from compliance.submission.runs import read_run
from tests.compliance import published_logs
from timetotrain.cli import main
from timetotrain.forecast import why


def write(path, blocks, evaluations, start=1.0, gap=0.5, batch=100):
    """A log of blocks (seconds, epochs) with an evaluation (seconds) after each; returns its path."""
    clock, epoch, lines = 1000.0, 0, []

    def add(key, value=None, **metadata):
        content = {"namespace": "", "time_ms": round(1e3 * clock), "event_type": "POINT_IN_TIME", "key": key}
        lines.append(":::MLLOG " + json.dumps(content | {"value": value, "metadata": metadata}))

    add("submission_benchmark", "resnet")
    add("global_batch_size", batch)
    add("train_samples", 1000)
    add("run_start")
    clock += start
    for (seconds, epochs), evaluation in zip(blocks, evaluations):
        add("block_start", first_epoch_num=epoch + 1, epoch_count=epochs)
        clock, epoch = clock + seconds, epoch + epochs
        add("block_stop", first_epoch_num=epoch + 1 - epochs)
        add("eval_start", epoch_num=epoch)
        clock += evaluation
        add("eval_accuracy", 0.5, epoch_num=epoch)
        add("eval_stop", epoch_num=epoch)
        clock += gap
    add("run_stop", status="success")
    path.write_text("\n".join(lines) + "\n")
    return path


def terms(first, second):
    return {term.name: term.seconds for term in why.explain(first, second)}


def test_a_log_is_taken_apart_into_what_it_says(tmp_path):
    shape = why.of_log(write(tmp_path / "a.txt", [(20, 4), (30, 4)], [2, 3]))
    assert (shape.steps, shape.unit, shape.evaluations) == (80, "steps", 2)
    assert (shape.start, shape.evaluation, shape.gaps) == pytest.approx((1, 5, 1))
    assert shape.step["step"] == pytest.approx(50 / 80)
    assert shape.total == pytest.approx(60 * read_run(tmp_path / "a.txt").minutes)


def test_each_term_is_what_changed(tmp_path):
    base = why.of_log(write(tmp_path / "a.txt", [(20, 4), (20, 4)], [2, 2]))
    for name, change, seconds in (
        ("start", {"start": 4.0}, 3),
        ("gaps", {"gap": 1.5}, 2),
        ("seconds an evaluation", {"evaluations": [3, 3]}, 2),
        ("seconds a step", {"blocks": [(25, 4), (20, 4)]}, 5),
        ("number of steps", {"blocks": [(20, 4), (40, 8)]}, 20),
    ):
        other = write(tmp_path / "b.txt", **({"blocks": [(20, 4), (20, 4)], "evaluations": [2, 2]} | change))
        found = terms(base, why.of_log(other))
        assert found[name] == pytest.approx(seconds), name
        assert all(value == pytest.approx(0, abs=1e-9) for key, value in found.items() if key != name), name


def test_an_evaluation_beside_training_is_no_time_of_its_own(tmp_path):
    path = write(tmp_path / "a.txt", [(20, 4), (30, 4)], [2, 3])
    lines = path.read_text().splitlines()
    keys = [json.loads(line.removeprefix(":::MLLOG "))["key"] for line in lines]
    stop, begin = keys.index("eval_stop"), len(keys) - 1 - keys[::-1].index("block_start")
    late = json.loads(lines[stop].removeprefix(":::MLLOG "))
    late["time_ms"] = json.loads(lines[begin].removeprefix(":::MLLOG "))["time_ms"] + 10_000
    lines.insert(begin + 1, ":::MLLOG " + json.dumps(late))
    del lines[stop]
    path.write_text("\n".join(lines) + "\n")
    shape = why.of_log(path)
    assert shape.evaluation == pytest.approx(2 + 0.5 + 3) and shape.steps * shape.step[
        "step"
    ] == pytest.approx(50)


def test_runs_in_different_units_still_add_up_and_keep_their_epochs(tmp_path):
    one = why.of_log(write(tmp_path / "a.txt", [(20, 4)], [2]))
    other = why.of_log(write(tmp_path / "b.txt", [(50, 4)], [2], batch=0))
    assert (one.unit, other.unit) == ("steps", "epochs")
    found = terms(one, other)
    assert sum(found.values()) == pytest.approx(other.total - one.total)
    assert found["number of epochs"] == 0 and "seconds a epoch" in found


def test_why_prints_terms_that_add_up(tmp_path, capsys):
    names = [str(write(tmp_path / name, [(s, 4)], [2])) for name, s in (("a.txt", 20), ("b.txt", 26))]
    assert main(["why", *names, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["terms"].values()) == pytest.approx(found["difference"]) == pytest.approx(6)
    assert main(["why", *names]) == 0
    assert "seconds a step" in capsys.readouterr().out
    (tmp_path / "c.txt").write_text("nothing\n")
    assert main(["why", names[0], str(tmp_path / "c.txt")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def trace(folder, events, device=()):
    """Writes a trace: (name, begin, end in ms) of the host's events, and of a GPU's kernels."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    for name, rows in (("/host:CPU", events), ("/device:GPU:0", device)):
        plane = space.planes.add(name=name)
        for number, (event, begin, end) in enumerate(rows, 1):
            plane.event_metadata[number].name = event
            line = plane.lines.add(name=f"Stream #{number}")  # One each, since they overlap.
            line.events.add(
                metadata_id=number, offset_ps=int(begin * 1e9), duration_ps=int((end - begin) * 1e9)
            )
    (folder / "plugins").mkdir(parents=True)
    (folder / "plugins/host.xplane.pb").write_bytes(space.SerializeToString())


# Of 100 ms: batch 0 to 20, product 15 to 80, sum 70 to 95; what waits for others computes nothing.
EVENTS = [
    ("profiled steps", 0, 100), ("train/IteratorGetNext:IteratorGetNext", 0, 20),
    ("model/MatMul:MatMul", 15, 80), ("sum/CollectiveReduceV2:CollectiveReduceV2", 70, 95),
    ("while:While", 0, 100), ("late/MatMul:MatMul", 100, 200),
]  # fmt: skip


def test_a_trace_beside_the_log_splits_its_step(tmp_path, capsys):
    logs = []
    for name, seconds in (("a", 20), ("b", 26)):
        (tmp_path / name).mkdir()
        logs.append(str(write(tmp_path / name / "result_0.txt", [(seconds, 4)], [2])))
    assert main(["why", *logs]) == 0
    assert "A step is one term: no trace lies beside result_0.txt" in capsys.readouterr().out
    trace(tmp_path / "a/profile_0", EVENTS)
    kernels = [("gemm", 15, 80), ("ncclDevKernel_AllReduce", 70, 95)]
    trace(tmp_path / "b/profile_0", EVENTS[:2], kernels)
    assert main(["why", *logs, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["a"]["step"] == pytest.approx({"compute": 0.35, "exchange": 0.075, "input": 0.075})
    assert actual["b"]["step"] == pytest.approx({"compute": 0.455, "exchange": 0.0975, "input": 0.0975})
    assert actual["terms"]["compute"] == pytest.approx(0.7 * 6)
    assert sum(actual["terms"].values()) == pytest.approx(actual["difference"]) == pytest.approx(6)
    assert main(["why", *logs]) == 0
    assert "one term" not in capsys.readouterr().out


def test_a_trace_of_one_run_alone_and_a_damaged_one(tmp_path, capsys):
    log = write(tmp_path / "result_0.txt", [(20, 4)], [2])
    other = write(tmp_path / "b.txt", [(26, 4)], [2])
    trace(tmp_path / "profile_0", EVENTS)
    assert terms(why.of_log(log), why.of_log(other))["seconds a step"] == pytest.approx(6)
    assert "no trace lies beside b.txt" in why.table(why.of_log(log), why.of_log(other))[-1]
    (tmp_path / "profile_0/plugins/host.xplane.pb").write_bytes(b"\xff" * 100)
    assert main(["why", str(log), str(other)]) == 2
    error = capsys.readouterr().err
    assert "not a trace that can be read" in error and error.count("\n") == 1


def test_traces_of_several_processes_are_averaged(tmp_path):
    log = write(tmp_path / "result_0.txt", [(20, 4)], [2])
    trace(tmp_path / "profile_0/first", EVENTS)
    one = why.of_log(log).step
    idle = [("profiled steps", 0, 100), ("train/IteratorGetNext:IteratorGetNext", 0, 100)]
    trace(tmp_path / "profile_0/second", idle)
    (tmp_path / "profile_0/second/plugins/host.xplane.pb").rename(tmp_path / "profile_0/other.xplane.pb")
    both = why.of_log(log).step
    assert both["input"] == pytest.approx((one["input"] + sum(one.values())) / 2)


def test_heads_say_what_ran_and_other_benchmarks_are_refused(tmp_path, capsys):
    one, other = (write(tmp_path / name, [(20, 4)], [2]) for name in ("a.txt", "b.txt"))
    other.write_text(other.read_text().replace('"resnet"', '"ssd"'))
    assert main(["why", str(one), str(other)]) == 2
    error = capsys.readouterr().err
    assert "a log of resnet" in error and "--any" in error and error.count("\n") == 1
    assert main(["why", str(one), str(other), "--any"]) == 0
    assert "A: resnet, batch 100, round 0.7.0, a.txt: 0.3917 minutes" in capsys.readouterr().out


def test_published_pairs_add_up_to_a_hundredth():
    compared = 0
    for name in published_logs.ROUNDS:
        by_folder = itertools.groupby(published_logs.logs(name), key=lambda path: path.parent)
        for _, logs in by_folder:
            for pair in itertools.pairwise(itertools.islice(logs, 2)):
                runs = [read_run(path) for path in pair]
                if any(run.minutes is None for run in runs):
                    continue
                try:
                    shapes = [why.of_log(path) for path in pair]
                except UserError as error:
                    assert "no time to explain" in str(error)
                    continue
                seconds = 60 * (runs[1].minutes - runs[0].minutes)
                assert sum(terms(*shapes).values()) == pytest.approx(seconds, rel=0.01, abs=0.01)
                compared += 1
    assert compared >= 20
