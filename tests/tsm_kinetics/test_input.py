"""Tests the path from videos to shards to batches: all videos once, only needed frames, resuming, bad files by name."""

import dataclasses
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from common.data import images, tfrecords
from common.data import videos as video
from common.distributed.replicas.base import Shard
from common.errors import UserError
from tests.tsm_kinetics.test_video import ramp
from tsm_kinetics import convert, sampling, shards
from tsm_kinetics import input as pipeline
from tsm_kinetics.config import Config, Data

WHOLE = Shard(0, 1)
CONFIG = Config(
    num_train_examples=9, num_eval_examples=5, num_classes=3, num_frames=4, image_size=16,
    global_batch_size=4, eval_batch_size=4,
    data=Data(window=8, eval_clips=2, eval_short_side=20, eval_size=18, scales=(1.0, 0.8)),
)  # fmt: skip


def make(folder: Path, split: str, count: int) -> None:
    for number in range(count):
        path = folder / split / "cab"[number % 3] / f"{number}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        video.write(path, ramp(6 + number, 24, 32))


def converted(folder: Path, data_dir: Path, **settings: object) -> list[str]:
    splits = {
        "train": (convert.items(folder / "train"), 2),
        "validation": (convert.items(folder / "validation"), 1),
    }
    return convert.convert(data_dir, splits, **settings)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    make(folder, "train", 9)
    make(folder, "validation", 5)
    assert converted(folder, folder / "data") == []
    return folder / "data"


def batches(dataset: tf.data.Dataset, count: int) -> list[dict[str, np.ndarray]]:
    return [{k: v.numpy() for k, v in batch.items()} for batch in dataset.take(count)]


def train(data_dir: Path, shard: Shard = WHOLE, batch_size: int = 4, start: int = 0, config: Config = CONFIG):
    index = pipeline.load(config, data_dir, training=True)
    return pipeline.train_input(config, index, shard, batch_size, start)


def equal(first: list[dict], second: list[dict]) -> bool:
    return all(np.array_equal(a[k], b[k]) for a, b in zip(first, second, strict=True) for k in a)


def test_the_index_points_at_the_frames_of_the_records(data_dir: Path) -> None:
    for split in ("train", "validation"):
        index, number = shards.Index(data_dir, split), 0
        for path in index.files:
            for record in tfrecords.read(path):
                feature = tf.train.Example.FromString(record).features.feature
                frames = list(feature["video/frames"].bytes_list.value)
                assert index.read(number, np.arange(len(frames))) == frames
                assert index.count[number] == len(frames)
                assert index.label[number] == feature["video/label"].int64_list.value[0]
                size = [feature[f"video/{side}"].int64_list.value[0] for side in ("height", "width")]
                assert index.size[number].tolist() == size == [24, 32]
                number += 1
        assert number == len(index)
    assert (data_dir / "classes.txt").read_text() == "a\nb\nc\n"


def test_only_the_wanted_bytes_are_read(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, pread = [], os.pread
    monkeypatch.setattr(shards.os, "pread", lambda file, n, at: (read.append(n), pread(file, n, at))[1])
    index = shards.Index(data_dir, "train")
    frames = index.read(3, np.array([0, 4, 4]))
    assert read == [len(frame) for frame in frames] and frames[1] == frames[2] != frames[0]


def test_a_batch(data_dir: Path) -> None:
    (batch,) = batches(train(data_dir), 1)
    assert batch["frames"].shape == (4, 4, 16, 16, 3) and batch["frames"].dtype == np.uint8
    assert batch["weight"].tolist() == [1] * 4 and set(batch["label"]) <= {0, 1, 2}
    # Gray values rise by 8 per frame and frames are 2 apart (window 8 / 4 frames), unless the end wraps round.
    rises = np.diff(batch["frames"].astype(int).mean(axis=(2, 3, 4)), axis=1)
    assert np.all((np.abs(rises - 16) < 4) | (rises < 0)) and np.any(np.abs(rises - 16) < 4)


def test_an_epoch_has_every_video_once_and_every_epoch_another_order(data_dir: Path) -> None:
    order = pipeline.Order(0, 9)
    epochs = [[order(9 * epoch + i)[1] for i in range(9)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(9)) for epoch in epochs) and epochs[0] != epochs[1]
    # 9 batches of 4 are 4 epochs of 9 videos.
    index = pipeline.load(CONFIG, data_dir, training=True)
    labels = np.concatenate([batch["label"] for batch in batches(train(data_dir), 9)])
    assert Counter(labels.tolist()) == {k: 4 * v for k, v in Counter(index.label.tolist()).items()}


def test_a_stream_can_be_entered_and_repeats(data_dir: Path) -> None:
    whole = batches(train(data_dir), 4)
    assert equal(whole, batches(train(data_dir), 4))
    assert equal(whole[2:], batches(train(data_dir, start=2), 2))
    other = batches(train(data_dir, config=dataclasses.replace(CONFIG, seed=1)), 4)
    assert not equal(whole, other)


def test_shards_together_see_the_global_batches(data_dir: Path) -> None:
    whole = batches(train(data_dir), 3)
    parts = [batches(train(data_dir, Shard(i, 2), 2), 3) for i in range(2)]
    joined = [{k: np.concatenate([a[k], b[k]]) for k in a} for a, b in zip(*parts)]
    assert equal(whole, joined)


def test_flips_mirror_half_of_the_clips_and_none_where_they_may_not(data_dir: Path) -> None:
    def left_brighter(flip: bool) -> list[bool]:
        data = dataclasses.replace(CONFIG.data, flip=flip, scales=(1.0,))
        frames = [
            b["frames"].astype(int)
            for b in batches(train(data_dir, config=dataclasses.replace(CONFIG, data=data)), 8)
        ]
        return [
            bool(clip[..., :4, :].mean() > clip[..., -4:, :].mean()) for batch in frames for clip in batch
        ]

    assert all(left_brighter(False)) and 0.2 < np.mean(left_brighter(True)) < 0.8


def test_a_flip_mirrors_every_row() -> None:
    frames = np.random.default_rng(0).integers(0, 256, [3, 4, 5, 3], np.uint8)
    np.testing.assert_array_equal(pipeline.flipped(tf.constant(frames)), frames[:, :, ::-1])


def test_an_order_goes_back_to_epochs_that_it_has_left() -> None:
    order = pipeline.Order(seed=3, count=4)
    places = range(40)
    first = [order(place) for place in places]
    assert [order(place) for place in places] == first
    assert all(sorted(video for epoch, video in first if epoch == e) == [0, 1, 2, 3] for e in range(10))


def test_the_network_sees_frames_or_their_differences() -> None:
    clips = np.random.default_rng(0).integers(0, 256, [2, 3, 4, 5, 3], np.uint8)
    deviation = np.array(images.STDDEV_RGB)
    frames = (clips - np.array(images.MEAN_RGB)) / deviation
    np.testing.assert_allclose(pipeline.normalize(clips, tf.float64), frames, rtol=1e-8, atol=1e-12)
    actual = pipeline.normalize(clips, tf.float64, "rgb_difference")
    for first, second, at in ((0, 1, 0), (0, 1, 1), (1, 2, 2)):
        change = (clips[:, second].astype(float) - clips[:, first]) / deviation
        np.testing.assert_allclose(actual[:, at], change, rtol=1e-8, atol=1e-12)
    still = np.repeat(clips[:, :1], 3, 1)
    assert not np.any(pipeline.normalize(still, tf.bfloat16, "rgb_difference"))


def test_a_jittered_clip_has_its_brightness_saturation_and_contrast_changed() -> None:
    """The jitter equals Pillow's ImageEnhance frame by frame, except that the mean is the clip's and is not rounded."""
    clip = np.random.default_rng(0).integers(40, 120, [2, 5, 6, 3], np.uint8)
    for brightness, saturation, contrast in (
        (1, 1, 1),
        (1.3, 1, 1),
        (1, 0.7, 1),
        (1, 1, 0.6),
        (0.8, 1.2, 1.3),
    ):
        want = clip * brightness
        gray = want @ [0.299, 0.587, 0.114]
        want = gray[..., None] * (1 - saturation) + want * saturation
        want = gray.mean() * (1 - contrast) + want * contrast
        actual = pipeline.jittered(
            tf.constant(clip), tf.constant([brightness, saturation, contrast], tf.float32)
        )
        assert actual.dtype == tf.uint8
        np.testing.assert_allclose(actual, want.clip(0, 255), atol=0.51)


def test_jitter_leaves_the_other_draws_and_differs_by_clip_and_epoch(data_dir: Path) -> None:
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, jitter=0.4, scales=(1.0,)))
    plain = dataclasses.replace(CONFIG, data=dataclasses.replace(config.data, jitter=0.0))
    pairs = zip(*(batches(train(data_dir, config=c), 5) for c in (config, plain)), strict=True)
    changes = []
    for changed, same in pairs:
        assert np.array_equal(changed["label"], same["label"])
        changes += [
            np.ptp(a.astype(float)) / np.ptp(b.astype(float))
            for a, b in zip(changed["frames"], same["frames"])
        ]
    assert len({round(change, 3) for change in changes}) > 15
    factors = np.array([sampling.train_factors(config.data, sampling.generator(0, e, 0)) for e in range(500)])
    assert 0.6 <= factors.min() < 0.61 and 1.39 < factors.max() <= 1.4
    assert np.all(sampling.train_factors(plain.data, sampling.generator(0, 0, 0)) == 1)


@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("crops", [1, 3])
def test_evaluation_sees_each_video_once_for_any_replicas(data_dir: Path, replicas: int, crops: int) -> None:
    config = dataclasses.replace(CONFIG, data=dataclasses.replace(CONFIG.data, eval_crops=crops))
    index = pipeline.load(config, data_dir, training=False)
    labels, lengths = [], []
    for i in range(replicas):
        dataset = pipeline.eval_input(config, index, Shard(i, replicas), 4 // replicas)
        mine = batches(dataset, -1)
        lengths.append(len(mine))
        assert all(batch["frames"].shape[1:] == (2 * crops * 4, 18, 18, 3) for batch in mine)
        labels += [
            label for batch in mine for label, weight in zip(batch["label"], batch["weight"]) if weight
        ]
        assert all((batch["label"] == -1).tolist() == (batch["weight"] == 0).tolist() for batch in mine)
    assert len(set(lengths)) == 1 and sorted(labels) == sorted(index.label.tolist())


def test_evaluation_s_views_are_clips_within_crops(data_dir: Path) -> None:
    """A view's frames are consecutive, so that a reshape to [views, T] separates a video's views."""
    data = dataclasses.replace(CONFIG.data, eval_crops=3)
    config = dataclasses.replace(CONFIG, data=data, eval_batch_size=5)
    index = pipeline.load(config, data_dir, training=False)
    (batch,) = batches(pipeline.eval_input(config, index, Shard(), 5), 1)
    for video_number in range(5):
        want = sampling.eval_frames(int(index.count[video_number]), 4, config.data)
        values = batch["frames"][video_number].astype(int).reshape(3, 2, 4, -1).mean(axis=-1)
        for crop in range(3):
            steps = values[crop] - values[crop][0, 0]
            np.testing.assert_allclose(steps, 8 * (want - want[0, 0]), atol=5)


def test_synthetic_batches_have_the_spec_of_both_inputs(data_dir: Path) -> None:
    config = dataclasses.replace(CONFIG, eval_batch_size=2)
    index = pipeline.load(config, data_dir, training=False)
    assert pipeline.synthetic(config, 4).element_spec == train(data_dir, config=config).element_spec
    assert (
        pipeline.synthetic(config, 2, training=False).element_spec
        == pipeline.eval_input(config, index, Shard(), 2).element_spec
    )
    assert next(iter(pipeline.synthetic(config, 2, training=False)))["frames"].shape == (2, 8, 18, 18, 3)
    assert next(iter(pipeline.synthetic(config, 4)))["frames"].shape == (4, 4, 16, 16, 3)


def test_bad_videos_are_counted_and_named(tmp_path: Path) -> None:
    make(tmp_path, "train", 6)
    make(tmp_path, "validation", 3)
    (tmp_path / "train" / "c" / "broken.mp4").write_bytes(b"not a video")
    failed = converted(tmp_path, tmp_path / "data")
    assert len(failed) == 1 and "broken.mp4: left out: cannot be decoded" in failed[0]
    assert (tmp_path / "data" / convert.LEFT_OUT).read_text().splitlines() == failed
    assert len(shards.Index(tmp_path / "data", "train")) == 6


def test_an_interrupted_conversion_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "train", 4)
    make(tmp_path, "validation", 3)
    names, write = [], shards.write

    def once(path: Path, *arguments: object) -> int:
        if len(names) == 1:
            raise KeyboardInterrupt
        names.append(path.name)
        return write(path, *arguments)

    monkeypatch.setattr(shards, "write", once)
    with pytest.raises(KeyboardInterrupt):
        converted(tmp_path, tmp_path / "data")
    monkeypatch.setattr(shards, "write", lambda path, *rest: (names.append(path.name), write(path, *rest))[1])
    converted(tmp_path, tmp_path / "data")
    assert names == ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"]
    with pytest.raises(UserError, match="of another conversion"):
        converted(tmp_path, tmp_path / "data", short_side=20)


def test_lists_in_both_forms(tmp_path: Path) -> None:
    (tmp_path / "clips.csv").write_text("path,label,split\na.mp4,x,train\nb.mp4,y,test\n")
    assert [item.label for item in convert.items(tmp_path / "clips.csv")] == ["x", "y"]
    (item,) = convert.items(tmp_path / "clips.csv", "/videos", "test")
    assert item == convert.Item("/videos/b.mp4", "y")
    (tmp_path / "k.csv").write_text("label,youtube_id,time_start,time_end,split\nrunning,ab,7,17,train\n")
    (item,) = convert.items(tmp_path / "k.csv", "/videos")
    assert item == convert.Item("/videos/ab_000007_000017.mp4", "running")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rows; expected path,label"),
        ("path,kind\na.mp4,x\n", "columns kind, path; expected path,label"),
        ("path,class\n", "no rows below the line of column names"),
    ],
)
def test_a_bad_list_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "list.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        convert.items(tmp_path / "list.csv")


def test_another_number_of_videos_or_classes_names_the_field(data_dir: Path) -> None:
    with pytest.raises(UserError, match="9 train videos, 10 expected; set --config.num_train_examples=9"):
        pipeline.load(dataclasses.replace(CONFIG, num_train_examples=10), data_dir, training=True)
    with pytest.raises(UserError, match="label 2, which is not below 2"):
        pipeline.load(dataclasses.replace(CONFIG, num_classes=2), data_dir, training=True)
    with pytest.raises(UserError, match="no file matches"):
        shards.Index(data_dir, "test")


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    make(tmp_path, "train", 9)
    make(tmp_path, "validation", 5)
    converted(tmp_path, tmp_path / "data")
    path = tmp_path / "data" / "train-00001-of-00002"
    index = shards.Index(tmp_path / "data", "train")
    whole, second = path.read_bytes(), int(np.flatnonzero(index.file == 1)[1])
    at = int(index.offset[index.first[second]])
    path.write_bytes(whole[:at] + b"\0" * 64 + whole[at + 64 :])
    error = pipeline.diagnose(CONFIG, tmp_path / "data")
    assert path.name in str(error) and "record 1 is damaged" in str(error)
    with pytest.raises(tf.errors.OpError):
        batches(train(tmp_path / "data"), 9)
    path.write_bytes(whole[:-10])
    with pytest.raises(UserError, match=f"{path.name}: {len(whole) - 10} bytes, {len(whole)} expected"):
        shards.Index(tmp_path / "data", "train")
    shards.index_path(path).unlink()
    with pytest.raises(UserError, match="its index index-train-00001-of-00002.npz is missing"):
        shards.Index(tmp_path / "data", "train")


def damaged(path: Path, how: str) -> None:
    """Truncates a file, like an interrupted copy, or changes a byte in its middle, like a bad disk."""
    whole, middle = path.read_bytes(), path.stat().st_size // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    path.write_bytes({"cut": whole[:middle], "changed": changed, "empty": b"", "text": b"nothing"}[how])


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "text"])
def test_a_damaged_index_is_one_line(tmp_path: Path, how: str) -> None:
    clips = [(f"video {i}", i % 3, video.Clip((b"jpeg",) * 50, 8, 8)) for i in range(20)]
    path = tmp_path / "train-00000-of-00001"
    shards.write(path, clips, [])
    assert len(shards.Index(tmp_path, "train")) == 20
    damaged(shards.index_path(path), how)
    with pytest.raises(UserError, match="index-train-00000-of-00001.npz: damaged .*; remove both and run"):
        shards.Index(tmp_path, "train")
    assert str(shards.index_path(path)) not in {
        os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()
    }
