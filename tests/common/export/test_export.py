"""Tests exported steps: shared rules, counted costs, and replays by jax equal to TensorFlow's compiled step."""

import copy
import dataclasses
import errno
import hashlib
import importlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from common.errors import UserError
from common.export import cost, rules
from common.export.steps import Argument, Steps
from common.export.write import _program, write
from lab.bench import replay

ROOT = pathlib.Path(__file__).resolve().parents[3]
# The interpreter with jax: this one if jax is installed (extra `train`), or REPLAY_PYTHON.
PYTHON = os.environ.get("REPLAY_PYTHON") or (sys.executable if importlib.util.find_spec("jax") else "")
needs_jax = pytest.mark.skipif(not PYTHON, reason="no jax here (make setup); or set REPLAY_PYTHON")
# Small steps of every benchmark.
SMALL = {
    "mnist": {
        "global_batch_size": 8, "eval_batch_size": 8, "model": "mlp", "hidden_units": 32, "dropout": 0.2,
    },
    "ptb": {"global_batch_size": 4, "eval_batch_size": 4},
    "resnet": {"global_batch_size": 4, "eval_batch_size": 4, "width": 8, "image_size": 32},
    "transformer": {"global_batch_size": 2, "eval_batch_size": 2, "layers": 2},
    "ssd": {"global_batch_size": 2, "eval_batch_size": 2},
    "tsm_kinetics": {"global_batch_size": 2, "eval_batch_size": 2},
    "gnmt": {"global_batch_size": 4, "eval_batch_size": 4, "bucket_limits": (18, 36)},
    "maskrcnn": {"global_batch_size": 2, "eval_batch_size": 2},
}  # fmt: skip


def exported(benchmark, folder, precision, reference="compiled", **changes):
    """The manifest of a tiny preset's export."""
    presets = importlib.import_module(f"{benchmark}.presets").PRESETS
    config = dataclasses.replace(presets["cpu-tiny"], precision=precision, **SMALL[benchmark], **changes)
    config.validate()
    task = importlib.import_module(f"{benchmark}.task").Task(config.single_replica(), None)
    return write(task, config, str(folder), reference, print), task, config


def replayed(folder, *arguments):
    """(exit status, report) of lab/bench/replay.py, which must not need TensorFlow."""
    report = folder.parent / f"{folder.name}.json"
    command = [PYTHON, "-m", "lab.bench.replay", folder, "--json", report, *arguments]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500,
        check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done, json.loads(report.read_text()) if report.exists() else None


def test_rules_make_the_same_bits_everywhere():
    uniform = {"rule": "uniform", "low": -1.0, "high": 3.0, "key": [5, 2]}
    array = rules.make(uniform, [3, 4], "float32", {})
    assert hashlib.sha256(array.tobytes()).hexdigest()[:16] == "d433dba6f9305777"
    integers = rules.make({"rule": "integers", "low": 2, "high": 9, "key": 7}, [1000], "int32", {})
    assert hashlib.sha256(integers.tobytes()).hexdigest()[:16] == "9de52f07de925798"
    assert set(integers) == set(range(2, 9))


def test_rules_fill_arrays_in_chunks_with_equal_values(monkeypatch):
    rule = {"rule": "uniform", "low": 0.0, "high": 1.0, "key": [1, 1]}
    whole = rules.make(rule, [100, 7], "float64", {})
    monkeypatch.setattr(rules, "_CHUNK", 64)
    assert (rules.make(rule, [100, 7], "float64", {}) == whole).all()


def test_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="newer"):
        rules.make({"rule": "magic"}, [1], "float32", {})
    with pytest.raises(ValueError, match="expected"):
        rules.make({"rule": "stored", "name": "x"}, [2], "float32", {"x": np.zeros(3)})


def test_a_digest_tells_arrays_apart():
    array = np.random.default_rng(0).normal(size=[50, 3])
    first = rules.digest(array, 3)
    assert rules.distance(rules.digest(array * (1 + 1e-7), 3), first) > 1e-8
    assert rules.distance(rules.digest(array[::-1], 3), first) > 1e-3
    assert np.isnan(rules.distance(rules.digest(array * np.nan, 3), first))


@pytest.mark.parametrize(
    "size, taps, stride, padding", [(9, 3, 1, "SAME"), (12, 5, 2, "SAME"), (11, 3, 2, "VALID")]
)
def test_costs_of_a_convolution_and_its_gradients(size, taps, stride, padding):
    """Each of a convolution's three products multiplies the same pairs of elements, without the padding."""
    x = tf.constant(np.ones([2, size, size, 3], np.float32))
    w = tf.Variable(np.ones([taps, taps, 3, 4], np.float32))

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.conv2d(x, w, stride, padding)
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, [x, w.read_value(), w])[::2]

    text = step.experimental_get_compiler_ir(x)(stage="stablehlo")
    ones = tf.ones([1, size, size, 1]), tf.ones([taps, taps, 1, 1])
    pairs = int(tf.reduce_sum(tf.nn.conv2d(*ones, stride, padding)))
    counted = cost.count(text)
    assert counted["convolutions"] == 3
    assert counted["matrix_flops"] == 3 * 2 * pairs * 2 * 3 * 4


def test_costs_of_a_product():
    x = tf.ones([5, 7, 2])

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        return tf.einsum("abc,adc->abd", x, x)

    counted = cost.count(step.experimental_get_compiler_ir(x)(stage="stablehlo"))
    assert (counted["matrix_flops"], counted["products"]) == (2 * 5 * 7 * 7 * 2, 1)


def test_costs_of_a_loop_count_its_body_once():
    x = tf.ones([4, 4])

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        return x @ tf.while_loop(lambda i, _: i < 7, lambda i, y: (i + 1, y @ y), (0, x))[1] @ x

    counted = cost.count(step.experimental_get_compiler_ir(x)(stage="stablehlo"))
    assert (counted["matrix_flops"], counted["products"], counted["in_loops"]) == (3 * 2 * 64, 3, 1)


@pytest.mark.parametrize("benchmark", SMALL)
def test_every_preset_reduces_to_a_single_replica(benchmark):
    for config in importlib.import_module(f"{benchmark}.presets").PRESETS.values():
        alone = config.single_replica()
        assert alone.num_replicas == 1
        assert alone.global_batch_size * config.num_groups == config.global_batch_size


def test_a_folder_that_is_in_use_is_refused(tmp_path):
    (tmp_path / "something").touch()
    with pytest.raises(UserError, match="not empty"):
        write(None, None, str(tmp_path), "none", print)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("writer", ["write_bytes", "savez_compressed", "write_text"])
def test_a_full_disk_is_one_line_and_leaves_the_folder_to_be_used_again(tmp_path, monkeypatch, writer, there):
    """Whichever file does not fit, no partial export remains, and the same command works once there is space."""
    folder = tmp_path / "mnist"
    if there:
        folder.mkdir()

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(np if writer == "savez_compressed" else pathlib.Path, writer, full)
        with pytest.raises(UserError, match=f"--export={folder}: No space left on device; free some space"):
            exported("mnist", folder, "fp32", "none")
    assert [path.name for path in tmp_path.rglob("*")] == ["mnist"] * there
    if writer == "write_text" and there:
        exported("mnist", folder, "fp32", "none")
        assert {path.name for path in tmp_path.iterdir()} == {"mnist"} and (folder / "manifest.json").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "new"):
        with pytest.raises(UserError, match=f"--export={folder}: "):
            write(None, None, str(folder), "none", print)
    with pytest.raises(UserError, match="--export=/proc: "):
        write(None, None, "/proc", "none", print)


def test_replay_says_what_is_missing(tmp_path):
    command = [sys.executable, "-m", "lab.bench.replay", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no such file" in done.stderr and "Traceback" not in done.stderr


def check_float64(folder, manifest, task, config):
    """Compares the first loss and every updated weight to 1e-9, all losses to 1e-6, the evaluation to 1e-9."""
    steps = Steps(task, config)
    names = {
        kind: [p["name"] for p in manifest["programs"] if p["kind"] == kind] for kind in ("train", "eval")
    }
    for name, batch in zip(names["train"], steps.batches(True), strict=True):
        check_training_step(folder, manifest, steps, name, batch)
    for name in names["eval"]:
        done, report = replayed(folder, "--steps=0", f"--program={name}")
        assert done.returncode == 0, done.stdout + done.stderr
        errors = report["programs"][0]["output_errors"]
        print(f"{name}: outputs {max(errors.values()):.2g}")
        assert max(errors.values()) <= 1e-9


def check_training_step(folder, manifest, steps, name, batch):
    """Compares a training program with TensorFlow's compiled step on the same batch."""
    saved = folder.parent / f"{name}.npz"
    done, report = replayed(folder, "--steps=0", f"--program={name}", f"--save={saved}")
    assert done.returncode == 0, done.stdout + done.stderr
    (train,) = report["programs"]
    print(
        f"{name}: losses {max(train['loss_errors']):.2g}, state {train['state_error']}, change {train['change_error']}"
    )
    assert train["loss_errors"][0] <= 1e-9 and max(train["loss_errors"]) <= 1e-6
    assert train["state_error"]["relative"] <= 1e-9
    steps.reset()
    steps.train({key: tf.constant(a.value) for key, a in batch.items()})
    actual, moved = np.load(saved), 0
    # Pairs by position, because Keras continues the layer numbers within a process.
    for about, (path, variable) in zip(manifest["state"], steps.variables.items(), strict=True):
        expected, before = variable.numpy(), steps.state[path].value
        moved += not np.array_equal(expected, before)
        key = about["name"].replace("/", ".")
        if key in actual:
            error = np.linalg.norm(actual[key] - expected) / (np.linalg.norm(expected) or 1)
            assert error <= 1e-9, path
        else:
            assert np.array_equal(expected, before), f"{path} is no part of the program"
    assert moved > len(steps.model.trainable_variables)


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """An export in float64: its folder, manifest, task and configuration."""
    folder = tmp_path_factory.mktemp("export") / "mnist"
    return folder, *exported("mnist", folder, "fp64")


@needs_jax
def test_mnist_replays_in_float64(mnist):
    check_float64(*mnist)


def test_the_manifest_says_what_a_program_takes_and_gives(mnist):
    folder, manifest, _, _ = mnist
    train, evaluation = manifest["programs"]
    roles = {a["name"]: a["role"] for a in [*manifest["state"], *train["inputs"]]}
    assert [train["name"], evaluation["name"]] == ["train", "eval"] and manifest["refused"] == {}
    assert train["results"][0] == {"name": "loss", "shape": [], "dtype": "float64", "updates": None}
    updated = {r["updates"] for r in train["results"][1:]}
    assert {n for n, role in roles.items() if role in ("weight", "slot")} <= updated <= set(roles)
    assert [a["name"] for a in train["arguments"][:3]] == ["train/image", "train/label", "train/weight"]
    sums = ("confused", "correct", "correct_top5", "loss", "seen")
    assert {r["name"] for r in evaluation["results"]} == {f"sums/{name}" for name in sums}
    assert sum(file.stat().st_size for file in folder.iterdir()) == manifest["bytes"] < 1e6


@needs_jax
@pytest.mark.e2e
@pytest.mark.parametrize("benchmark", [name for name in SMALL if name != "mnist"])
def test_replays_in_float64(benchmark, tmp_path):
    folder = tmp_path / benchmark
    check_float64(folder, *exported(benchmark, folder, "fp64"))


def test_a_replica_s_number_that_became_a_constant_is_one_line():
    number = tf.Variable(0, trainable=False, name="replica", dtype=tf.int32)
    steps = types.SimpleNamespace(
        train=tf.function(lambda batch: tf.slice(batch["x"], [number], [2]), jit_compile=True),
        replicas=types.SimpleNamespace(number=number),
        name_of=lambda captured: "replica",
    )
    batch = {
        "x": Argument("x", "input", x := np.arange(8, dtype=np.float32), {"rule": "stored", "name": "x"}, x)
    }
    with pytest.raises(UserError, match="replica's number in train as a constant; cut with Replicas.cut"):
        _program(steps, "train", True, batch)


def test_an_export_without_values_holds_the_same_program(mnist, tmp_path, capsys):
    _, whole, task, config = mnist
    folder = tmp_path / "bare"
    bare = write(task, config, str(folder), "compiled", print, "train", values=False)
    (program,) = bare["programs"]
    for part in ("cost", "exchanges", "wide", "custom_calls"):
        assert program[part] == whole["programs"][0][part]
    assert [a["shape"] for a in program["arguments"]] == [
        a["shape"] for a in whole["programs"][0]["arguments"]
    ]
    assert [a["role"] for a in bare["state"]] == [a["role"] for a in whole["state"]]
    assert program["reference"] is None
    assert all(name.startswith("constant.") for name in np.load(folder / "arrays.npz").files)
    with pytest.raises(SystemExit, match="export it again without --noexport_values"):
        replay.read(folder)


@needs_jax
def test_mnist_replays_in_float32_and_is_timed(tmp_path):
    folder = tmp_path / "mnist"
    exported("mnist", folder, "fp32")
    done, report = replayed(folder, "--steps=2", "--rounds=2", "--warmup=1", "--peak=0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    (train,) = report["programs"]
    assert max(train["loss_errors"]) <= 1e-6
    assert train["ms"] > 0 and train["tflops"] == pytest.approx(train["matrix_tflop"] / train["ms"] * 1000)
    assert train["share_of_peak"] == pytest.approx(train["tflops"] / 0.5)


@needs_jax
def test_a_changed_expected_weight_fails_the_replay(mnist, tmp_path):
    """A small error in an expected weight makes the replay fail."""
    folder = shutil.copytree(mnist[0], tmp_path / "mnist")
    manifest = copy.deepcopy(mnist[1])
    name = next(a["name"] for a in manifest["state"] if a["role"] == "weight")
    manifest["programs"][0]["reference"]["state"][name]["after"]["projection"] += 1e-6
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done, _ = replayed(folder, "--steps=0")
    assert done.returncode == 1 and "DIFFERS" in done.stdout and name in done.stdout


@needs_jax
@pytest.mark.e2e
@pytest.mark.parametrize("benchmark", [name for name in SMALL if name != "mnist"])
def test_replays_in_float32(benchmark, tmp_path):
    folder = tmp_path / benchmark
    exported(benchmark, folder, "fp32")
    done, report = replayed(folder, "--steps=0")
    assert done.returncode == 0, done.stdout + done.stderr
    for program in report["programs"]:
        errors = program["loss_errors"]
        print(f"{program['program']}: {errors}")
        # A step that makes choices has replay.py's wider bounds, which the status above covers.
        assert program["chooses"] or max(errors) <= 1e-6
    assert report["programs"][0]["chooses"] == (benchmark in ("ssd", "maskrcnn"))


@needs_jax
def test_replay_needs_no_tensorflow(tmp_path):
    code = (
        f"import sys; sys.argv = ['replay', {str(tmp_path)!r}]\n"
        "import jax, lab.bench.replay\nprint([m for m in ('tensorflow', 'absl') if m in sys.modules])"
    )
    done = subprocess.run([PYTHON, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
