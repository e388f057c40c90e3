"""Tests that an export answers as the network that was saved, in a process with TensorFlow alone."""

import base64
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from common.config.ranges import RESIZES
from common.data import images
from common.errors import UserError
from common.export import formats, recipe, trained
from common.export import inference as answers
from tests.common.export import networks

# Runs where nothing of this repository can be imported.
PLAIN = """
import base64, json, sys
import numpy as np
import tensorflow as tf
folder, inputs, out = sys.argv[1:]
signature = tf.saved_model.load(folder).signatures["serving_default"]
(name,) = signature.structured_input_signature[1]

def call(given):
    if isinstance(given[0], str):
        values = tf.constant([base64.b64decode(x) for x in given])
    else:
        values = tf.constant(given, tf.int32)
    return {n: v.numpy() for n, v in signature(**{name: values}).items()}

answers = [call(given) for given in json.load(open(inputs))]
found = {n: np.concatenate([answer[n] for answer in answers]) for n in answers[0]}
np.savez(out, **{n: v.astype(str) if v.dtype == object else v for n, v in found.items()})
assert not [m for m in sys.modules if m.split(".")[0] in ("common", "timetotrain", "resnet", "tf_keras")]
"""


def plainly(export, calls, folder):
    """What plain TensorFlow says of the inputs of each call, in an empty folder, without what this project sets."""
    encoded = [
        [base64.b64encode(x).decode() for x in values] if values.dtype == object else values.tolist()
        for values in calls
    ]
    (folder / "inputs.json").write_text(json.dumps(encoded))
    (folder / "empty").mkdir()
    environment = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "TF_USE_LEGACY_KERAS")}
    command = [sys.executable, "-c", PLAIN, *map(str, (export, folder / "inputs.json", folder / "out.npz"))]
    subprocess.run(command, cwd=folder / "empty", env=environment, check=True)
    with np.load(folder / "out.npz") as file:
        return {name: file[name] for name in file.files}


TIES = 0.002  # The most detections, of all, that may be other boxes of the same score and class.


def tolerance(value):
    return 1e-5 * max(1.0, float(np.abs(value).max()))


def compare(actual, expected):
    """Numbers agree to 1e-5, whole numbers and names exactly.

    Of detections, `TIES` may be other boxes, whose scores and classes agree: between equal scores, rounding says which
    stands first, and of two that overlap which one stays.
    """
    assert sorted(actual) == sorted(expected)
    if "boxes" in expected:
        same = np.abs(actual["boxes"] - expected["boxes"]).max(-1) <= tolerance(expected["boxes"])
        assert (~same).mean() <= TIES, "boxes"
        of_boxes = {"boxes", "masks"} & set(expected)
        actual, expected = ({**all_, **{n: all_[n][same] for n in of_boxes}} for all_ in (actual, expected))
    for name, value in expected.items():
        if value.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], value, rtol=0, atol=tolerance(value), err_msg=name)
        else:
            values = [x.decode() for x in value.ravel()] if value.dtype == object else value.ravel().tolist()
            assert actual[name].ravel().tolist() == values, name


def test_only_detections_of_equal_score_may_change_places():
    rng = np.random.default_rng(0)
    expected = {"boxes": rng.uniform(0, 50, [50, 20, 4]).astype(np.float32), "scores": np.full([50, 20], 0.5)}
    actual = {name: value.copy() for name, value in expected.items()}
    actual["boxes"][3, [4, 5]] = actual["boxes"][3, [5, 4]]
    compare(actual, expected)
    actual["boxes"][7, 7, 2] += 1
    with pytest.raises(AssertionError, match="boxes"):
        compare(actual, expected)
    actual = {**expected, "scores": expected["scores"].copy()}
    actual["scores"][3, 4] += 1e-4
    with pytest.raises(AssertionError, match="scores"):
        compare(actual, expected)


def export_and_compare(benchmark, tmp_path, count):
    saved = networks.Saved(benchmark, tmp_path / "checkpoints")
    kind = saved.serving.kind
    if kind == "video":  # A call answers one video.
        calls = [networks.inputs(kind, 3 + seed % 17, saved.config, seed) for seed in range(count)]
    else:
        calls = [networks.inputs(kind, count, saved.config)]
    formats.write(trained.load(saved.path), tmp_path / "export", "savedmodel")
    actual = plainly(tmp_path / "export", calls, tmp_path)
    answers = saved.answers(calls)
    compare(actual, answers)
    assert kind != "video" or len(actual["scores"]) == count
    return saved, actual


def test_a_saved_model_answers_as_the_network_in_plain_tensorflow(tmp_path):
    _, answers = export_and_compare("mnist", tmp_path, 5)
    assert len(np.unique(answers["scores"].round(4), axis=0)) == 5  # Other inputs have other answers.


@pytest.mark.e2e
@pytest.mark.parametrize(
    "benchmark", ["resnet", "ssd", "maskrcnn", "tsm_kinetics", "transformer", "gnmt", "mnist", "ptb"]
)
def test_a_hundred_inputs_of_each_kind(benchmark, tmp_path):
    _, actual = export_and_compare(benchmark, tmp_path, 100)
    if benchmark in ("ssd", "maskrcnn"):
        assert (actual["classes"] > 0).any() and actual["boxes"].max() > 1
    if benchmark == "resnet":
        assert "cat" in actual["top_names"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return networks.Saved("mnist", tmp_path_factory.mktemp("digits"))


def test_safetensors_hold_the_weights_by_name(digits, tmp_path):
    library = pytest.importorskip("safetensors")
    from common.train import warm_start

    formats.write(trained.load(digits.path), tmp_path / "out", "safetensors")
    with library.safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        metadata, names = file.metadata(), sorted(file.keys())
        assert names == sorted(warm_start.variables(digits.state.model))
        for name, variable in warm_start.variables(digits.state.model).items():
            np.testing.assert_array_equal(file.get_tensor(name), variable.numpy())
    assert metadata["benchmark"] == "mnist" and json.loads(metadata["labels"])[1] == "cat"


def test_a_saved_model_gives_its_weights_by_name(digits, tmp_path):
    from common.layers import weight_files
    from common.train import warm_start

    formats.write(trained.load(digits.path), tmp_path / "out", "savedmodel")
    arrays, variables = weight_files.read(tmp_path / "out"), warm_start.variables(digits.state.model)
    assert sorted(arrays) == sorted(variables)
    for name, variable in variables.items():
        np.testing.assert_array_equal(arrays[name], variable.numpy())


def test_stablehlo_takes_the_input_and_the_weights_by_name(digits, tmp_path):
    formats.write(trained.load(digits.path), tmp_path / "out", "stablehlo")
    about = json.loads((tmp_path / "out" / "model.json").read_text())
    with np.load(tmp_path / "out" / "weights.npz") as weights:
        assert set(about["arguments"]) == {"image", *weights.files}


def test_onnx_computes_the_same(digits, tmp_path):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    formats.write(trained.load(digits.path), tmp_path / "out", "onnx")
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx")
    for count in (1, 3):
        image = np.random.default_rng(0).integers(0, 256, [count, 28, 28]).astype(np.uint8)
        values = np.array([*(tf.io.encode_png(one[..., None]).numpy() for one in image), b""], object)[:-1]
        (actual,) = session.run(None, {"image": image})
        # As `timetotrain predict` answers of the same files.
        np.testing.assert_allclose(actual, digits.answers([values])["scores"], atol=1e-6)
    (tmp_path / "digit.png").write_bytes(values[0])
    command = [sys.executable, tmp_path / "out/recipe.py", tmp_path / "digit.png"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (scores,) = re.findall(r"\[(.*)\]", output)
    np.testing.assert_allclose([float(x) for x in scores.split(",")], actual[0, :5], atol=1e-6)


def test_onnx_takes_any_number_of_texts(tmp_path):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    network = trained.load(networks.Saved("ptb", tmp_path / "checkpoints").path)
    formats.write(network, tmp_path / "out", "onnx")
    session = runtime.InferenceSession(tmp_path / "out" / "model.onnx")
    words = np.random.default_rng(0).integers(0, 40, [3, network.config.num_steps]).astype(np.int32)
    (scores,) = session.run(None, {"words": words})
    np.testing.assert_allclose(scores, network.serving.features(words), atol=1e-5)


@pytest.mark.parametrize("size", [(32, 32), (48, 48), (17, 64)])
@pytest.mark.parametrize("method", RESIZES)
def test_the_recipe_resizes_as_tensorflow(method, size):
    for shape in ((40, 56, 3), (20, 33, 3), (301, 200, 3), (48, 48, 3)):
        picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        expected = images.resize(tf.constant(picture), list(size), method).numpy()
        np.testing.assert_allclose(recipe.resized(picture, list(size), method), expected, atol=0.01)


def told_by_the_recipe(folder, pictures):
    """The arrays that the recipe beside an export makes, in a process with numpy alone."""
    np.savez(folder / "pictures.npz", *pictures)
    code = (
        "import json, pathlib, sys, numpy, recipe\n"
        "about = json.loads(next(pathlib.Path().glob('*.json')).read_text())\n"
        "pictures = numpy.load('pictures.npz').values()\n"
        "arrays = [recipe.prepared(picture, about) for picture in pictures]\n"
        "numpy.savez('arrays.npz', **{n: numpy.concatenate([a[n] for a in arrays]) for n in arrays[0]})\n"
        "assert not {'common', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    with np.load(folder / "arrays.npz") as file:
        return dict(file)


@pytest.mark.parametrize(
    "benchmark", ["mnist", *(pytest.param(b, marks=pytest.mark.e2e) for b in ("resnet", "ssd", "maskrcnn"))]
)
def test_the_recipe_s_inputs_have_predict_s_answers(benchmark, tmp_path):
    saved = networks.Saved(benchmark, tmp_path / "checkpoints")
    pictures = [np.random.default_rng(i).integers(0, 256, [40 + i, 56, 3]).astype(np.uint8) for i in range(3)]
    pictures = [
        np.asarray(Image.fromarray(x).resize((90, 61)).convert("L" if benchmark == "mnist" else "RGB"))
        for x in pictures
    ]
    files = np.array([*(tf.io.encode_png(np.atleast_3d(x)).numpy() for x in pictures), b""], object)[:-1]
    network = trained.load(saved.path)
    formats.write(network, tmp_path / "out", "stablehlo")
    arrays = told_by_the_recipe(tmp_path / "out", pictures)
    rows = [network.serving.features(*(value[i : i + 1] for value in arrays.values())) for i in range(3)]
    expected = saved.answers([files])
    if benchmark in ("mnist", "resnet"):
        np.testing.assert_allclose(np.concatenate(rows), expected["scores"], atol=1e-4)
        return
    actual = {name: np.concatenate([row[name].numpy() for row in rows]) for name in rows[0]}
    np.testing.assert_allclose(actual["scores"], expected["scores"], atol=1e-4)


def test_a_checkpoint_answers_as_the_network(digits):
    values = networks.inputs("classes", 3, digits.config)
    expected = digits.answers([values])
    network = answers.from_checkpoint(trained.load(digits.path))
    np.testing.assert_allclose(network(values)["scores"], expected["scores"], atol=1e-6)
    assert network.labels == networks.LABELS


def test_an_existing_folder_and_a_missing_checkpoint_are_one_line(digits, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    with pytest.raises(UserError, match="full: exists; name a new folder"):
        formats.write(trained.load(digits.path), tmp_path / "full", "savedmodel")
    assert (tmp_path / "full" / "file").read_text() == "kept"
    with pytest.raises(UserError, match="none: no checkpoint there"):
        trained.load(tmp_path / "none")
    with pytest.raises(UserError, match="empty: no checkpoint there"):
        (tmp_path / "empty").mkdir()
        answers.load(tmp_path / "empty")
