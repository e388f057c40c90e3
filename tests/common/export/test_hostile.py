"""Tests models of strangers under `predict` and `export`: nothing is imported or written, and one line says why."""

import dataclasses
import json
import os
import random
import zipfile

import numpy as np
import pytest

from common.config import benchmarks
from common.errors import UserError
from common.export import inference, saved_graph, trained
from tests import hostile
from tests.common.export import hostile_models

SAMPLE = int(os.environ.get("TTT_HOSTILE_CASES", 40))  # Mutations to try; docs/security.md names more.


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return hostile_models.model(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def place(tmp_path):
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def refused(verb, model, place, message, *flags):
    """Gives the model to a verb, which must refuse it in one line that has `message`, and do nothing else."""
    outcome = hostile_models.attempt(verb, model, place, flags)
    assert not hostile_models.broken(outcome), outcome
    assert outcome["status"] == 2 and message in outcome["error"], outcome
    assert str(model.name) in outcome["error"] and not (place / "here/out").exists()


def rewritten(parts, place, compression=zipfile.ZIP_STORED):
    path = place / "checkpoint_00000007.npz"
    hostile.write(path, parts, compression)
    return path


def changed(sound, **fields):
    """The members of the sound checkpoint, with fields of its configuration changed: {"optimizer.name": value}."""
    members = hostile.members(sound[0])
    about = hostile.meta(members)
    for path, value in fields.items():
        group, _, last = path.rpartition(".")
        (about["config"][group] if group else about["config"])[last] = value
    return hostile.with_meta(members, about)


def replaced(parts, member, content):
    return [(name, content if name == member else data) for name, data in parts]


# ---------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("verb", ["predict", "export"])
def test_the_sound_models_answer(sound, place, verb):
    outcome = hostile_models.attempt(verb, sound[0], place)
    assert outcome["status"] == 0 and not hostile_models.broken(outcome), outcome


def test_the_sound_export_answers(sound, place):
    outcome = hostile_models.attempt("predict", sound[1], place)
    assert outcome["status"] == 0 and not hostile_models.broken(outcome), outcome


@pytest.mark.parametrize("verb", ["predict", "export"])
@pytest.mark.parametrize(
    "name", ["../escaped", "/tmp/escaped", "a/b", "..", "con.txt", "timetotrain.json", "a\\b"]
)
def test_an_asset_is_a_plain_file_name(sound, place, verb, name):
    parts = [*hostile.members(sound[0]), (f"assets/{name}.npy", hostile.array(np.zeros(3, np.uint8)))]
    refused(verb, rewritten(parts, place), place, "is not a plain file name")


@pytest.mark.parametrize("verb", ["predict", "export"])
def test_an_asset_of_a_translation_is_refused_before_a_network_is_made(sound, place, verb):
    about = hostile.meta(parts := hostile.members(sound[0]))
    parts = hostile.with_meta(parts, {**about, "benchmark": "gnmt"})
    parts.append(("assets/../../escaped.npy", hostile.array(np.zeros(3, np.uint8))))
    refused(verb, rewritten(parts, place), place, "is not a plain file name")


@pytest.mark.parametrize("verb", ["predict", "export"])
@pytest.mark.parametrize("field", ["optimizer.name", "schedule.kind"])
@pytest.mark.parametrize("name", [f"{hostile.EVIL}:make", f"{hostile.EVIL}.inner:make", "nonsense"])
def test_what_trained_a_model_is_not_looked_at(sound, place, verb, field, name):
    outcome = hostile_models.attempt(verb, rewritten(changed(sound, **{field: name}), place), place)
    assert outcome["status"] == 0 and not hostile_models.broken(outcome), outcome


def test_an_export_says_what_trained_it(sound, place):
    model = trained.load(rewritten(changed(sound, **{"optimizer.name": "evil:rule"}), place))
    assert model.about()["config"]["optimizer"]["name"] == "evil:rule" != model.config.optimizer.name


def with_norm(sound, place):
    config = dataclasses.asdict(
        dataclasses.replace(benchmarks.module("resnet", "presets").PRESETS["cpu-tiny"])
    )
    config |= {"norm": f"{hostile.EVIL}:make", "division": "open"}
    about = {**hostile.meta(hostile.members(sound[0])), "benchmark": "resnet", "config": config}
    return rewritten(hostile.with_meta(hostile.members(sound[0]), about), place)


@pytest.mark.parametrize("verb", ["predict", "export"])
def test_a_layer_that_a_model_names_needs_a_flag(sound, place, verb):
    refused(verb, with_norm(sound, place), place, "give --allow_plugins to import and run it")


def test_with_the_flag_it_is_imported(sound, place):
    outcome = hostile_models.attempt("predict", with_norm(sound, place), place, ["--allow_plugins"])
    assert (
        outcome["status"] == 2
        and "marker" in outcome["imported"]
        and "no function 'make'" in outcome["error"]
    ), outcome


@pytest.mark.parametrize("name", ["", "pip", hostile.EVIL, "common.export", ["mnist"], "mnist.presets"])
def test_a_checkpoint_names_a_known_benchmark(sound, place, name):
    about = {**hostile.meta(hostile.members(sound[0])), "benchmark": name}
    about["config"]["benchmark"] = name
    path = rewritten(hostile.with_meta(hostile.members(sound[0]), about), place)
    refused(
        "predict", path, place, "is unknown; known: " if isinstance(name, str) else "not a whole checkpoint"
    )


def test_the_benchmark_in_the_configuration_has_no_say(sound, place):
    path = rewritten(changed(sound, benchmark=hostile.EVIL), place)
    assert trained.load(path).benchmark == "mnist"


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": hostile.HUGE}, "config.image_size=1000000000000 is far beyond the presets"),
        ({"hidden_layers": hostile.HUGE}, "config.hidden_layers=1000000000000 is far beyond the presets"),
        ({"hidden_units": 8448, "hidden_layers": 250}, "a network with more weights than it holds"),
        ({"image_size": "large"}, "config.image_size=large: not whole number"),
        ({"image_size": True}, "config.image_size=True: not whole number"),
        ({"data": [1]}, "config.data: is not a group of fields"),
        ({"evil": 1}, "config.evil: unknown field"),
        ({"model": "../../x"}, "config.model='../../x': unknown"),
        ({"seed": -1}, "config.seed=-1: must be at least 0"),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(sound, place, fields, message):
    refused("predict", rewritten(changed(sound, **fields), place), place, message)


def test_large_models_are_taken_with_a_flag(sound, place):
    outcome = hostile_models.attempt(
        "predict", rewritten(changed(sound, hidden_layers=300), place), place, ["--allow_large"]
    )
    assert "far beyond" not in outcome["error"] and "its variables are not those" in outcome["error"]


def damaged(members, kind):
    """The members with one fault, and how they are packed."""
    weight = next(name for name, _ in members if name.startswith("weights/"))
    return {
        "shape of 10^12": (replaced(members, weight, hostile.header([hostile.HUGE])), zipfile.ZIP_STORED),
        "10^24": (replaced(members, weight, hostile.header([hostile.HUGE] * 2)), zipfile.ZIP_STORED),
        "pickle": (
            replaced(members, weight, hostile.array(np.array([hostile.Pickled()], object))),
            zipfile.ZIP_STORED,
        ),
        "twice": ([*members, (weight, members[0][1])], zipfile.ZIP_STORED),
        "bomb": (
            replaced(members, weight, hostile.header([1 << 28], "|u1", bytes(1 << 28))),
            zipfile.ZIP_DEFLATED,
        ),
        "nested": (hostile.with_meta(members, "[" * 500_000), zipfile.ZIP_STORED),
        "no member of ours": ([*members, ("run.sh", b"rm")], zipfile.ZIP_STORED),
    }[kind]


@pytest.mark.parametrize(
    "kind", ["shape of 10^12", "10^24", "pickle", "twice", "bomb", "nested", "no member of ours"]
)
def test_an_archive_that_lies_is_one_line(sound, place, kind):
    path = rewritten(
        *[damaged(hostile.members(sound[0]), kind)[0], place], damaged(hostile.members(sound[0]), kind)[1]
    )
    refused("predict", path, place, "not a whole checkpoint")


def test_members_that_unpack_to_a_hundred_gigabytes(sound, place):
    """Every member says 4 GB."""
    members = [
        *hostile.members(sound[0]),
        *((f"weights/{i}.npy", hostile.header([1 << 32], "|u1")) for i in range(25)),
    ]
    path = rewritten(members, place)
    data, at = path.read_bytes(), 0
    while (at := data.find(b"PK\x01\x02", at)) >= 0:
        data, at = data[: at + 24] + (2**32 - 2).to_bytes(4, "little") + data[at + 28 :], at + 4
    path.write_bytes(data)
    refused("predict", path, place, "unpack to 1")


# ------------------------------------------------------------------------------------------------------ SavedModels


@pytest.fixture
def export(sound, tmp_path):
    import shutil

    return shutil.copytree(sound[1], tmp_path / "model")


def described(export, **fields):
    path = export / "assets.extra/timetotrain.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return export


def graphed(export, change):
    hostile_models.change_graph(export / "saved_model.pb", random.Random(0), change)
    return export


@pytest.mark.parametrize("name", ["", "pip", hostile.EVIL, "../x", "common"])
def test_a_saved_model_names_a_known_benchmark(export, place, name):
    refused("predict", described(export, benchmark=name, kind="translation"), place, "is unknown; known: ")


@pytest.mark.parametrize("fields", [{"benchmark": 3}, {"kind": "evil"}, {"labels": "x"}, {"config": []}])
def test_a_description_of_another_form_is_one_line(export, place, fields):
    refused("predict", described(export, **fields), place, "model")


@pytest.mark.parametrize("operation", hostile_models.OPERATIONS)
def test_an_operation_that_leaves_the_graph_is_not_loaded(export, operation, monkeypatch):
    def change(graph, rng):
        hostile_models.random_node(graph, rng).op = operation

    graphed(export, change)
    monkeypatch.setattr(inference.tf.saved_model, "load", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(UserError, match=f"runs the operation {operation}, which is not one of those"):
        inference.load(export)


def test_none_of_the_operations_that_are_allowed_touches_a_file_or_the_host():
    words = "File Py Save Restore Checkpoint Dataset Debug Print Immutable Remote Custom".split()  # noqa: SIM905
    assert not [name for name in saved_graph.ALLOWED if any(word in name for word in words)]
    assert {"MatMul", "While", "VarHandleOp"} <= saved_graph.ALLOWED


def itself(graph, rng):
    names = set(graph.object_graph_def.concrete_functions)
    function = next(f for f in graph.graph_def.library.function if f.signature.name in names and f.node_def)
    function.node_def[0].op = "StatefulPartitionedCall"
    function.node_def[0].attr["f"].func.name = function.signature.name


def keras(graph, rng):
    graph.object_graph_def.nodes[0].user_object.identifier = "_tf_keras_model"


def large(graph, rng):
    tensor = hostile_models.random_node(graph, rng, "Const").attr["value"].tensor
    tensor.tensor_shape.dim.add().size = hostile.HUGE


def of_version_1(graph, rng):
    graph.ClearField("object_graph_def")


def reading(graph, rng):
    graph.asset_file_def.add().filename = "../../../etc/passwd"


@pytest.mark.parametrize(
    "change, message",
    [
        (itself, "a function that calls itself"),
        (keras, "an object of the kind '_tf_keras_model'"),
        (large, "has constants of"),
        (of_version_1, "is of TensorFlow 1"),
        (reading, "reads files of its own"),
    ],
)
def test_a_graph_that_is_not_as_we_write_it_is_refused(export, place, change, message):
    refused("predict", graphed(export, change), place, message)


@pytest.mark.parametrize("other", ["saved_model.cpb", "saved_model.pbtxt"])
def test_another_graph_in_its_place_is_refused(export, place, other):
    (export / other).write_bytes(b"")
    refused("predict", export, place, "would be loaded in the place")


def test_links_and_pipes_in_a_saved_model_are_not_read(export, place):
    path = export / "assets.extra/timetotrain.json"
    path.unlink()
    os.symlink("/etc/passwd", path)
    refused("predict", export, place, "is a link")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match="not a regular file"):
        inference.load(export)


def test_an_asset_that_is_a_link_is_not_read(export):
    os.symlink("/etc/passwd", export / "assets.extra/vocabulary")
    with pytest.raises(UserError, match="vocabulary is a link"):
        inference._assets(export)


# ---------------------------------------------------------------------------------------------------- mutations


@pytest.mark.parametrize("number", range(SAMPLE))
def test_a_mutated_model_is_answered_or_one_line(sound, place, number):
    outcome = hostile_models.run(number, 1, sound, place)
    assert not hostile_models.broken(outcome), outcome
