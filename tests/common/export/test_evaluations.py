"""Tests that `predict` answers about files what an evaluation, which reads them from its records, computes.

What is exported answers as `predict`: test_formats.py, a hundred inputs of each kind.
"""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from common.data import tfrecords, videos
from common.distributed.replicas.base import Shard
from common.export import inference, trained
from tests.common.export import networks

WHOLE = Shard(0, 1)
SIZES = [(40, 56), (48, 48), (56, 40), (64, 64)]
RNG = np.random.default_rng(3)


def noise(width, height):
    return np.asarray(Image.fromarray(RNG.integers(0, 256, [6, 8, 3], np.uint8)).resize((width, height)))


def compare(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def records(saved, folder):
    """(the batches that an evaluation reads of pictures, the pictures' files)."""
    config, name = saved.config, saved.config.benchmark
    files = [tf.io.encode_jpeg(noise(*size)).numpy() for size in SIZES]
    serialized = [
        tfrecords.example(
            {
                "image/encoded": file,
                "image/source_id": str(i),
                "image/class/label": 1,
                "image/width": width,
                "image/height": height,
            }
        )
        for i, (file, (width, height)) in enumerate(zip(files, SIZES))
    ]
    split = "validation" if name == "resnet" else "val"
    tfrecords.write(folder / f"{split}-00000-of-00001", serialized)
    steps = (2,) if name == "maskrcnn" else ()  # A step of each orientation.
    batches = saved.task.input.eval_input(config, folder, WHOLE, len(SIZES), *steps)
    return list(batches), np.array(files, object)


@pytest.mark.parametrize("benchmark", ["resnet", "mnist"])
def test_classes(benchmark, tmp_path):
    saved = networks.Saved(benchmark, tmp_path / "checkpoints", eval_batch_size=4)
    if benchmark == "resnet":
        (batch,), files = records(saved, tmp_path)
    else:
        size = saved.config.image_size
        pictures = np.stack([noise(size, size)[..., 0] for _ in SIZES])
        batch = next(iter(saved.task.input.eval_input(saved.config, (pictures, np.zeros(4)), WHOLE, 4)))
        files = np.array([tf.io.encode_png(one[..., None]).numpy() for one in pictures], object)
    answer = inference.from_checkpoint(trained.load(saved.path))(files)
    compare(
        answer["scores"], tf.nn.softmax(saved.task.logits(saved.state.model, batch, training=False)).numpy()
    )


@pytest.mark.parametrize("benchmark", ["ssd", "maskrcnn"])
def test_objects(benchmark, tmp_path):
    """Boxes are pixels of the picture, in an evaluation fractions, clipped where they are counted."""
    saved = networks.Saved(benchmark, tmp_path / "checkpoints", eval_batch_size=4)
    batches, files = records(saved, tmp_path)
    steps = [saved.task.evaluate(saved.state.model, batch).arrays for batch in batches]
    arrays = {name: np.concatenate([step[name].numpy() for step in steps]) for name in steps[0]}
    order = np.argsort(arrays["image_id"])[-len(SIZES) :]
    answer = inference.from_checkpoint(trained.load(saved.path))(files)
    for name in ("scores", "classes", *(["masks"] if benchmark == "maskrcnn" else [])):
        actual, expected = answer[name].astype(float), arrays[name][order].astype(float)
        # Masks of an evaluation are float16.
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3 if name == "masks" else 1e-5)
    sides = np.array([[h, w, h, w] for w, h in SIZES], np.float32)[:, None]
    compare(answer["boxes"], arrays["boxes"][order].clip(0, 1) * sides)
    assert (answer["classes"] > 0).any()


def test_a_video(tmp_path):
    pytest.importorskip("av")
    from tsm_kinetics import convert

    saved = networks.Saved("tsm_kinetics", tmp_path / "checkpoints", eval_batch_size=1, num_eval_examples=1)
    for split in ("train", "validation"):
        (tmp_path / split / "a").mkdir(parents=True)
        videos.write(tmp_path / split / "a" / "one.mp4", np.stack([noise(48, 40) for _ in range(14)]))
    convert.convert(tmp_path / "data", {s: (convert.items(tmp_path / s), 1) for s in ("train", "validation")})
    index = saved.task.input.load(saved.config, tmp_path / "data", training=False)
    batch = next(iter(saved.task.input.eval_input(saved.config, index, WHOLE, 1)))
    count = int(index.count[0])
    frames = np.array([*index.read(0, np.arange(count)), b""], object)[:-1]
    answer = inference.from_checkpoint(trained.load(saved.path))(frames)
    compare(answer["scores"], saved.task.scores(saved.state.model, batch["frames"]).numpy())


@pytest.mark.parametrize("benchmark", ["transformer", "gnmt"])
def test_a_translation(benchmark, tmp_path):
    """`predict` takes sentences as long as those of the training, so its search may take more steps; not here."""
    same = {"max_sequence_length": 40} if benchmark == "transformer" else {}
    saved = networks.Saved(benchmark, tmp_path / "checkpoints", eval_batch_size=4, **same)
    config, tokens = saved.config, networks.inputs("translation", 4, saved.config)
    length = config.packed_length if benchmark == "transformer" else config.decode.source_length
    rows = np.zeros([4, length], np.int32)
    rows[:, : tokens.shape[1]] = tokens
    if benchmark == "transformer":
        batch = {
            "inputs": rows,
            "inputs_position": np.where(rows != 0, np.arange(length), 0).astype(np.int32),
        }
    else:
        batch = {"source": rows, "source_length": (rows != 0).sum(1).astype(np.int32)}
    batch |= {"index": np.arange(4), "weight": np.ones(4, np.float32)}
    batch = {name: tf.constant(value) for name, value in batch.items()}
    expected = saved.task.evaluate(saved.state.model, batch).arrays["tokens"].numpy()
    tokens_of_model = saved.answers([tokens])["tokens"]
    shared = min(tokens_of_model.shape[1], expected.shape[1])
    np.testing.assert_array_equal(tokens_of_model[:, :shared], expected[:, :shared])
    assert not tokens_of_model[:, shared:].any() and not expected[:, shared:].any() and tokens_of_model.any()


def test_the_next_words(tmp_path):
    """The evaluation's loss of a text is minus the logarithm of what each word had as the next."""
    saved = networks.Saved("ptb", tmp_path / "checkpoints", eval_batch_size=1)
    steps = saved.config.num_steps
    words = np.array([0, *RNG.integers(0, saved.config.vocabulary_size, steps)], np.int32)
    batch = {"words": words[None, :-1], "targets": words[None, 1:], "weight": np.ones([1, steps], np.float32)}
    batch |= {"stream": np.zeros(1, np.int32), "keep": np.zeros(1, np.float32)}
    sums = saved.task.evaluate(saved.state.model, {n: tf.constant(v) for n, v in batch.items()}).sums
    texts = [" ".join(f"w{w}" for w in words[1 : 1 + n]).encode() for n in range(steps)]
    scores = inference.from_checkpoint(trained.load(saved.path))(np.array([*texts, b""], object)[:-1])[
        "scores"
    ]
    np.testing.assert_allclose(-np.log(scores[np.arange(steps), words[1:]]).sum(), sums["loss"], rtol=1e-5)
