"""Decoded and augmented 224 px training images per second and core, against tf-models-official's pipeline.

Both read the same TFRecords of real photographs in one process, in alternating rounds. The result is images per second
of CPU time: what one core delivers, and the figure that other processes disturb least. Ours is timed as it is (the
device normalizes), and also with the normalization on the same core.

    python -m lab.bench.resnet_input [--rounds N] [--output FILE]
"""

import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.data import tfrecords
from common.distributed.replicas.base import Shard
from common.errors import answering
from lab.bench.harness import scripts
from lab.bench.harness.rounds import alternate
from lab.bench.harness.scripts import head, write
from lab.studies.data import unpack
from resnet import input as resnet_input
from resnet.config import Config, Data

BATCH, SIZE, SHUFFLE = 128, 224, 1000
BAR = 1.1  # Minimum ratio to tf-models' pipeline with the same interpolation.
WARMUP, TIMED = 8, 12  # Batches per round; the first eight hold every photograph, and so fill a cache.


def write_records(folder: Path, splits: Sequence[str] = ("train",)) -> None:
    """Writes the photographs as eight shards of each split in ImageNet's layout.

    Raises UserError: the data set is not there.
    """
    photos = sorted(unpack("imagenet1000_256").glob("*.JPEG"))
    serialized = [
        tfrecords.example({"image/encoded": photo.read_bytes(), "image/class/label": label})
        for label, photo in enumerate(photos, 1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for split, i in itertools.product(splits, range(8)):
        tfrecords.write(folder / tfrecords.shard_name(split, i, 8), serialized[i::8])


def ours(folder: Path, cache: str = "none") -> Iterator[Any]:
    config = Config(image_size=SIZE, data=Data(cache=cache, shuffle_buffer=SHUFFLE))
    return iter(resnet_input.train_input(config, folder, Shard(), BATCH))


@tf.function
def normalised(batch: dict[str, tf.Tensor]) -> tf.Tensor:
    return resnet_input.normalise(batch["image"])


def tf_models(folder: Path, method: str = "bicubic") -> Iterator[Any]:
    """Returns the pipeline that official/vision/tasks/image_classification.py build_inputs makes for one worker."""
    from official.vision.configs import image_classification
    from official.vision.dataloaders import classification_input, input_reader_factory

    parameters = image_classification.DataConfig(
        input_path=str(folder / "train-*"),
        is_training=True,
        global_batch_size=BATCH,
        dtype="float32",
        shuffle_buffer_size=SHUFFLE,
        tf_resize_method=method,
    )
    parser = classification_input.Parser(
        output_size=[SIZE, SIZE], num_classes=1000, dtype="float32", tf_resize_method=method
    )
    reader = input_reader_factory.input_reader_generator(
        parameters,
        dataset_fn=tf.data.TFRecordDataset,
        decoder_fn=classification_input.Decoder().decode,
        parser_fn=parser.parse_fn(True),
    )
    return iter(reader.read())


def measure(name: str, make: Callable[[], Iterator[Any]]) -> float:
    """Runs one round of one pipeline; returns images per second of CPU time."""
    batches = make()
    for _ in itertools.islice(batches, WARMUP):
        pass
    began = time.process_time()
    for _ in itertools.islice(batches, TIMED):
        pass
    speed = TIMED * BATCH / (time.process_time() - began)
    print(f"{name}: {speed:.0f} images/s/core", flush=True)
    return speed


def run(rounds: int) -> dict[str, Any]:
    """Runs all rounds; returns them with medians and ratios."""
    about = head("tf-models-official", "numpy")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_records(folder)
        pipelines = {
            "ours, bicubic": lambda: ours(folder),
            "ours, bicubic, normalised": lambda: map(normalised, ours(folder)),
            "tf-models, bicubic": lambda: tf_models(folder),
            "ours, decoded pictures kept in memory": lambda: ours(folder, "decoded"),
        }
        results = alternate(
            {name: functools.partial(measure, name, make) for name, make in pipelines.items()}, rounds
        )
    median = {name: round(statistics.median(of), 1) for name, of in results.items()}
    bare, mine, same, _ = median.values()
    return {
        **about,
        "what": f"augmented {SIZE} px training images, batch {BATCH}, from photographs of short side 256",
        "images_per_second_per_core": median,
        "ratio_to_tf_models_bicubic": round(bare / same, 3),
        "ratio_to_tf_models_bicubic_with_normalisation": round(mine / same, 3),
        "bar": BAR,
        "rounds": {name: [round(speed, 1) for speed in of] for name, of in results.items()},
    }


@answering()
def main() -> int:
    """Prints the table and writes the JSON; the exit status says whether the bar was reached."""
    parser = scripts.parser(__doc__, "resnet_input.json", rounds=7)
    options = parser.parse_args()
    result = run(options.rounds)
    write(result, options.output)
    ratio = result["ratio_to_tf_models_bicubic_with_normalisation"]
    print(json.dumps(result["images_per_second_per_core"], indent=2))
    print(f"{ratio:.2f} times tf-models' pipeline, normalisation included (bar: {BAR}); {options.output}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
