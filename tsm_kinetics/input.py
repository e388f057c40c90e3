"""Makes batches of clips as a function of (seed, step), reading single frames from the shards of shards.py.

A batch is {"frames": uint8 [b, N, H, W, 3], "label": int32 [b], "weight": float32 [b]}. In training, the N frames are a
clip, and H = W = image_size. In evaluation, they are all clips and crops of a video, [views x T], and H = W =
data.eval_size. The element_spec omits N, H and W, so that both inputs have the same one. An epoch is a permutation of
the videos, keyed by seed and epoch. The endless sequence of epochs is cut into global batches, which are the same on
any number of replicas.
"""

import os
import threading

import numpy as np
import tensorflow as tf

from common.data import padding, pipeline, record_counts, tfrecords
from common.data.images import normalize_rgb, resize, to_uint8
from common.distributed.replicas.base import Shard
from common.errors import UserError
from tsm_kinetics import sampling, shards
from tsm_kinetics.config import Config

SPLITS = {True: "train", False: "validation"}
# Luma weights of red, green and blue: ITU-R BT.601.
_LUMA = (0.299, 0.587, 0.114)
_ORDER_STREAM = 0x6F72  # Makes the key of the order differ from the keys in sampling.py.
_KEPT_ORDERS = 3  # Permutations to keep: a step may reach into the next epoch while an earlier one is in use.


def check_files(config: Config, data_dir: str | os.PathLike) -> None:
    """Raises UserError if shards or indices are missing, or a note has the wrong number of videos; opens no file."""
    for training, field in ((True, "num_train_examples"), (False, "num_eval_examples")):
        files = shards.check_files(data_dir, SPLITS[training])
        if record_counts.noted(files):  # Without a note, the index supplies the number on the clock.
            record_counts.check_totals(files, getattr(config, field), field, read=False)


def load(config: Config, data_dir: str | os.PathLike, training: bool) -> shards.Index:
    """Loads the index of the videos that a run trains or evaluates on.

    Raises UserError if files are missing or damaged, the number of videos differs from the configuration's, or a label
    is not a class.
    """
    index = shards.Index(data_dir, SPLITS[training])
    expected, field = (
        (config.num_train_examples, "num_train_examples")
        if training
        else (config.num_eval_examples, "num_eval_examples")
    )
    if len(index) != expected:
        raise UserError(
            f"{data_dir}: {len(index)} {SPLITS[training]} videos, {expected} expected; "
            f"set --config.{field}={len(index)}"
        )
    if index.label.min() < 0 or index.label.max() >= config.num_classes:
        worst = int(index.label.max())
        raise UserError(
            f"{data_dir}: a {SPLITS[training]} video has label {worst}, which is not below {config.num_classes}; "
            "set --config.num_classes"
        )
    return index


class Order:
    """The endless sequence of the epochs' video permutations; a call looks up one place in it."""

    def __init__(self, seed: int, count: int):
        self._seed, self._count = seed % 2**63, count
        self._epochs: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()

    def __call__(self, place: int) -> tuple[int, int]:
        """Returns (epoch, video) at `place`."""
        epoch, rest = divmod(place, self._count)
        with self._lock:
            permutation = self._epochs.get(epoch)
            if permutation is None:
                key = np.random.SeedSequence([self._seed, _ORDER_STREAM, epoch])
                permutation = np.random.default_rng(key).permutation(self._count)
                # Keeps the latest permutations, not always the highest epochs, because a stream may start again.
                self._epochs[epoch] = permutation
                for old in list(self._epochs)[:-_KEPT_ORDERS]:
                    del self._epochs[old]
        return epoch, int(permutation[rest])


def train_input(
    config: Config, index: shards.Index, shard: Shard, batch_size: int, start_step: int
) -> tf.data.Dataset:
    """Yields one shard's augmented training batches without end, from `start_step` on; `index` is from `load`."""
    data, share = config.data, config.global_batch_size // shard.count
    order = Order(config.seed, len(index))

    def sample(number: np.ndarray) -> tuple[np.ndarray, ...]:
        step, within = divmod(int(number), share)
        epoch, video = order(step * config.global_batch_size + shard.index * share + within)
        rng = sampling.generator(config.seed, epoch, video)
        frames = sampling.train_frames(int(index.count[video]), config.frames, data, rng)
        window = sampling.train_window(*map(int, index.size[video]), config.image_size, data, rng)
        mirrored = data.flip and rng.random() < 0.5
        factors = sampling.train_factors(data, rng)
        encoded = _strings(index.read(video, frames))
        return encoded, window[None], np.bool_(mirrored), factors, index.label[video]

    def decode(number: tf.Tensor) -> dict[str, tf.Tensor]:
        types = [tf.string, tf.int32, tf.bool, tf.float32, tf.int32]
        encoded, windows, mirrored, factors, label = tf.numpy_function(
            sample, [number], types, stateful=False
        )
        frames = decoded(encoded, windows, config.image_size, data.resize)
        if data.jitter:
            frames = jittered(frames, tf.ensure_shape(factors, [3]))
        frames = tf.cond(mirrored, lambda: flipped(frames), lambda: frames)
        return _element(frames, label) | {"weight": tf.constant(1.0)}

    numbers = tf.data.Dataset.range(start_step * share, 2**62)
    clips = pipeline.prepared(numbers, decode)
    return pipeline.ahead(clips.batch(batch_size, drop_remainder=True))


def eval_input(config: Config, index: shards.Index, shard: Shard, batch_size: int) -> tf.data.Dataset:
    """Makes one pass over this shard's videos in padded batches; padding has label -1 and weight 0."""
    data = config.data
    numbers = np.arange(shard.index, len(index), shard.count)
    sizes = [len(range(i, len(index), shard.count)) for i in range(shard.count)]
    # One stream may feed several replicas; each gets a whole number of batches.
    per_step = shard.batches_per_step(config.eval_batch_size, batch_size)

    def sample(video: np.ndarray) -> tuple[np.ndarray, ...]:
        video = int(video)
        frames = sampling.eval_frames(int(index.count[video]), config.frames, data)
        windows = sampling.eval_windows(*map(int, index.size[video]), data)
        distinct, places = np.unique(frames, return_inverse=True)
        once = _strings(index.read(video, distinct))
        return once[places.reshape(-1)], windows, index.label[video]

    def decode(video: tf.Tensor) -> dict[str, tf.Tensor]:
        types = [tf.string, tf.int32, tf.int32]
        encoded, windows, label = tf.numpy_function(sample, [video], types, stateful=False)
        return _element(decoded(encoded, windows, data.eval_size, data.resize), label)

    videos = tf.data.Dataset.from_tensor_slices(numbers.astype(np.int64))
    examples = pipeline.prepared(videos, decode)
    shape = [config.views * config.frames, data.eval_size, data.eval_size, 3]
    nothing = {"frames": tf.zeros(shape, tf.uint8), "label": -1}
    batches = padding.num_batches(sizes, batch_size, per_step)
    return pipeline.ahead(padding.pad(examples, nothing, batch_size, batches))


def synthetic(config: Config, batch_size: int, training: bool = True) -> tf.data.Dataset:
    """Repeats one batch of seeded noise with both inputs' element_spec, in the training or evaluation shape."""
    views, size = (1, config.image_size) if training else (config.views, config.data.eval_size)
    rng = np.random.default_rng(config.seed)
    batch = {
        "frames": rng.integers(0, 256, [batch_size, views * config.frames, size, size, 3], np.uint8),
        "label": np.arange(batch_size, dtype=np.int32) % config.num_classes,
        "weight": np.ones([batch_size], np.float32),
    }
    dataset = tf.data.Dataset.from_tensors(batch).map(
        lambda batch: {**batch, "frames": _of_any_size(batch["frames"], batch_size)}
    )
    return dataset.repeat()


def normalize(clips: tf.Tensor, dtype: tf.DType, modality: str = "rgb") -> tf.Tensor:
    """Computes the network's input from clips [b, T, H, W, 3], on the device; the arithmetic is at least float32.

    "rgb": (pixels - mean) / standard deviation per channel. "rgb_difference": each frame minus the previous one, which
    removes static content (Wang et al., "Temporal Segment Networks", section 3.2); the first difference is repeated.
    """
    frames = normalize_rgb(clips, dtype)
    if modality == "rgb_difference":
        changes = frames[:, 1:] - frames[:, :-1]
        frames = tf.concat([changes[:, :1], changes], 1)
    return tf.cast(frames, dtype)


def jittered(frames: tf.Tensor, factors: tf.Tensor) -> tf.Tensor:
    """Changes a clip's brightness, saturation and contrast equally in every frame, uint8 [T, H, W, 3].

    Args:
      frames: the clip's frames.
      factors: float32 [3], which scale brightness, each pixel's distance from its gray value, and its distance from the
        clip's mean gray.
    """
    brightness, saturation, contrast = tf.unstack(factors)
    pixels = tf.cast(frames, tf.float32) * brightness
    gray = tf.reduce_sum(pixels * tf.constant(_LUMA), -1, keepdims=True)
    pixels = gray + (pixels - gray) * saturation
    middle = tf.reduce_mean(gray)
    pixels = middle + (pixels - middle) * contrast
    return tf.cast(tf.clip_by_value(pixels + 0.5, 0.0, 255.0), tf.uint8)


def diagnose(config: Config, data_dir: str | os.PathLike) -> UserError | None:
    """Reads all files after the input has failed, and names the file and record at fault."""
    try:
        for training in (True, False):
            files = load(config, data_dir, training).files
            fault = tfrecords.diagnose(files, lambda record: shards.complaint(record, config.num_classes))
            if fault:
                return fault
    except UserError as error:
        return error
    return None


def _strings(encoded: list[bytes]) -> np.ndarray:
    return np.array([*encoded, b""], dtype=object)[:-1]  # A bytes dtype would have one length for all.


def decoded(encoded: tf.Tensor, windows: tf.Tensor, size: int, method: str) -> tf.Tensor:
    """Cuts and scales each window (top, left, height, width) of each frame: uint8 [windows x frames, size, size, 3]."""
    encoded, windows = tf.ensure_shape(encoded, [None]), tf.ensure_shape(windows, [None, 4])

    def one(place: tf.Tensor) -> tf.Tensor:
        window, frame = windows[place // tf.size(encoded)], encoded[place % tf.size(encoded)]
        pixels = tf.io.decode_and_crop_jpeg(frame, window, channels=3)
        return to_uint8(resize(pixels, [size, size], method))

    places = tf.range(tf.shape(windows)[0] * tf.size(encoded))
    spec = tf.TensorSpec([size, size, 3], tf.uint8)
    return tf.map_fn(one, places, fn_output_signature=spec)


def flipped(frames: tf.Tensor) -> tf.Tensor:
    """Mirrors frames [T, H, W, 3] left to right.

    Treats them as one tall picture, because TensorFlow has a faster kernel for rows of pixels.
    """
    shape = tf.shape(frames)
    rows = tf.reshape(frames, [-1, shape[2], 3])
    return tf.reshape(tf.reverse(rows, [1]), shape)


def _element(frames: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"frames": _of_any_size(frames), "label": tf.ensure_shape(label, [])}


def _of_any_size(frames: tf.Tensor, *leading: int) -> tf.Tensor:
    """Hides the sizes of all axes except the channels and `leading` from the graph; the pixels stay the same."""
    return tf.ensure_shape(
        tf.raw_ops.PlaceholderWithDefault(input=frames, shape=[*leading, None, None, None, 3]),
        [*leading, None, None, None, 3],
    )
