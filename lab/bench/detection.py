"""The detectors' own operations against tf-models-official's.

Operations of one kind take the same inputs. Where the results must be equal, the script checks this before timing.
Rounds alternate. The result is the median over rounds of (their seconds / our seconds) in the same round.

    python -m lab.bench.detection [--rounds N] [--only NAME...] [--compile] [--output FILE]

`--compile` compiles every operation with XLA, ours and theirs, as on a GPU, and reports an operation for which XLA has
no kernel. Without it they run as on a CPU.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from official.vision.ops import nms as official_nms
from official.vision.ops import sampling_ops, spatial_transform_ops

from common.detection import nms, roi_align, sampling, topk
from lab.bench.harness import scripts
from lab.bench.harness.rounds import alternate, rows_of
from lab.bench.harness.scripts import head, write

# Minimum ratio of their seconds to ours. ROIAlign has no bar of its own: it is part of Mask R-CNN's step.
BARS = {"topk": 1.2, "nms_proposals": 1.2, "nms_classes": 1.2}
SECONDS = 1.0  # per contender and round; at least one call

# An operation's contenders: {name: function without arguments}; "ours" comes first.
Contenders = dict[str, Callable[[], Any]]
# Compares the results of the contenders that compiled.
Check = Callable[[dict[str, Any]], None]


def check_equal(found: dict[str, Any]) -> None:
    first, *others = found.values()
    for other in others:
        np.testing.assert_array_equal(first, other)


def topk_case() -> tuple[Contenders, Check]:
    """SSD's hard negatives: from each of 32 images, the k largest of 8,732 losses; each image has its own k."""
    rng = np.random.default_rng(0)
    values = tf.constant(rng.gamma(1.0, 2.0, [32, 8732]).astype(np.float32))
    k = tf.constant(rng.integers(3, 900, [32]).astype(np.int32))

    def by_sorting() -> tf.Tensor:
        """As tf-models-official selects hard examples: TensorFlow's top_k, which needs one k for all images."""
        best = tf.math.top_k(values, values.shape[1]).values
        return values >= tf.gather(best, k - 1, batch_dims=1)[:, None]

    def by_rank() -> tf.Tensor:
        """As the reference does: argsort of the argsort."""
        order = tf.argsort(values, direction="DESCENDING")
        return tf.argsort(order) < k[:, None]

    ours = functools.partial(topk.topk_mask, values, k)
    return {"ours": ours, "top_k": by_sorting, "argsort": by_rank}, check_equal


def sample_case() -> tuple[Contenders, Check]:
    """The region proposal network's sample of 256 of 279,279 anchors."""
    rng = np.random.default_rng(1)
    kind = tf.constant(rng.choice(3, [279279], p=[0.001, 0.95, 0.049]))
    positive, negative = kind == 0, kind == 1
    sampler = sampling_ops.BalancedPositiveNegativeSampler(positive_fraction=0.5)

    def ours() -> tf.Tensor:
        noise = sampling.noise(1, tf.constant(5, tf.int64), tf.constant([7], tf.int64), 279279)
        sample = sampling.balanced(positive[None], negative[None], noise, 256, 128)
        return (sample.positive | sample.negative)[0]

    def theirs() -> tf.Tensor:
        return sampler.subsample(positive | negative, 256, positive)

    def check(found: dict[str, Any]) -> None:
        for chosen in found.values():
            assert int(tf.reduce_sum(tf.cast(chosen, tf.int32))) == 256

    return {"ours": ours, "official": theirs}, check


def nms_case(rows: int, boxes: int, overlap: float, kept: int, clusters: int) -> tuple[Contenders, Check]:
    """Suppression in `rows` lists of `boxes` boxes around `clusters` objects; keeps at most `kept` boxes per list."""
    rng = np.random.default_rng(2)
    centre = rng.uniform(0.1, 0.9, [rows, clusters, 2])[:, rng.integers(0, clusters, boxes)]
    centre += rng.normal(0, 0.02, centre.shape)
    side = rng.uniform(0.05, 0.2, [rows, boxes, 2])
    corners = tf.constant(np.concatenate([centre - side / 2, centre + side / 2], -1).astype(np.float32))
    scores = tf.constant(np.sort(rng.random([rows, boxes]).astype(np.float32))[:, ::-1].copy())

    def ours() -> tf.Tensor:
        mask = nms.suppress(corners, tf.ones_like(scores, tf.bool), overlap)
        top, place = tf.math.top_k(tf.where(mask, scores, tf.zeros_like(scores)), kept)
        chosen = tf.gather(corners, place, batch_dims=1)
        return tf.where(top[..., None] > 0, chosen, tf.zeros_like(chosen))

    def theirs() -> tf.Tensor:
        return official_nms.sorted_non_max_suppression_padded(scores, corners, kept, overlap)[1]

    def one_by_one() -> tf.Tensor:
        """TensorFlow's CPU kernel, called once per row."""

        def row(args: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            place, count = tf.image.non_max_suppression_padded(
                *args, kept, overlap, pad_to_max_output_size=True
            )
            chosen = tf.gather(args[0], place)
            return tf.where((tf.range(kept) < count)[:, None], chosen, tf.zeros_like(chosen))

        return tf.map_fn(row, (corners, scores), fn_output_signature=tf.float32)

    return {"ours": ours, "official": theirs, "tf_image": one_by_one}, check_equal


def roi_case(regions: int, size: int, samples: int) -> tuple[Contenders, Check]:
    """`regions` regions of an 832x1344 image from a pyramid of 256 channels, forward and backward."""
    rng = np.random.default_rng(3)
    features = {
        level: tf.constant(rng.normal(size=[1, 832 >> level, 1344 >> level, 256]).astype(np.float32))
        for level in (2, 3, 4, 5)
    }
    low = rng.uniform(0, 0.7, [1, regions, 2])
    high = low + (1 - low) * rng.uniform(0.03, 1, [1, regions, 2]) ** 3
    boxes = tf.constant((np.concatenate([low, high], -1) * [832, 1344, 832, 1344]).astype(np.float32))

    def with_gradients(function: Callable[[dict], tf.Tensor]) -> tuple[tf.Tensor, dict]:
        with tf.GradientTape() as tape:
            tape.watch(features)
            pooled = function(features)
            total = tf.reduce_sum(pooled * pooled)
        gradients = tape.gradient(total, features)
        return pooled, {level: tf.convert_to_tensor(g) for level, g in gradients.items()}

    def theirs(inputs: dict) -> tf.Tensor:
        named = {str(level): x for level, x in inputs.items()}
        pooled = spatial_transform_ops.multilevel_crop_and_resize(named, boxes, size * samples)
        if samples == 1:
            return pooled
        pooled = tf.nn.avg_pool2d(pooled[0], samples, samples, "VALID")
        return pooled[None]

    def check(found: dict[str, Any]) -> None:
        (first, gradients), *others = found.values()
        for other, other_gradients in others:
            np.testing.assert_allclose(first, other, rtol=1e-3, atol=1e-3)
            for level in features:
                np.testing.assert_allclose(gradients[level], other_gradients[level], rtol=1e-2, atol=1e-2)

    return {
        "ours": lambda: with_gradients(lambda x: roi_align.roi_align(x, boxes, size, samples)),
        "official": lambda: with_gradients(theirs),
    }, check


CASES: dict[str, Callable[[], tuple[Contenders, Check]]] = {
    "topk": topk_case,
    "sample": sample_case,
    # Five levels of two images before suppression, as in training.
    "nms_proposals": lambda: nms_case(10, 2000, 0.7, 1000, 150),
    # 80 classes of four images, as in SSD's evaluation.
    "nms_classes": lambda: nms_case(320, 200, 0.5, 200, 30),
    "roi_align_boxes": lambda: roi_case(512, 7, 2),
    "roi_align_masks": lambda: roi_case(128, 14, 2),
    "roi_align_one_sample": lambda: roi_case(512, 7, 1),
}


def measure(name: str, rounds: int, jit: bool) -> dict[str, Any]:
    """Checks and times an operation's contenders."""
    contenders, check = CASES[name]()
    compiled, missing = {}, {}
    for contender, function in contenders.items():
        run = tf.function(function, jit_compile=jit, autograph=False)
        try:
            run()
            compiled[contender] = run
        except tf.errors.OpError as error:
            missing[contender] = type(error).__name__
    if compiled:
        check({contender: run() for contender, run in compiled.items()})
    seconds = {contender: functools.partial(_seconds, run) for contender, run in compiled.items()}
    return {
        "contenders": rows_of(alternate(seconds, rounds), digits=6),
        "cannot": missing,
        "bar": BARS.get(name),
    }


def _seconds(run: Callable[[], Any]) -> float:
    """Returns the seconds per call, over several calls if one is short."""
    began, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - began < SECONDS:
        # Copying to the host waits for the result.
        _ = [x.numpy() for x in tf.nest.flatten(run())][:0]
        calls += 1
    return (time.perf_counter() - began) / calls


def main() -> None:
    parser = scripts.parser(__doc__, "detection.json", rounds=7)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    about = head("tf-models-official")
    about["machine"]["gpus"] = len(tf.config.list_physical_devices("GPU"))
    about["compiled"] = options.compile
    measured = {}
    for name in options.only:
        measured[name] = measure(name, options.rounds, options.compile)
        for contender, row in measured[name]["contenders"].items():
            over = "     -" if row["ratio_to_ours"] is None else f"{row['ratio_to_ours']:6.2f}x"
            print(f"{name:22} {contender:10} {row['seconds'] * 1e3:10.2f} ms {over}", flush=True)
        for contender, reason in measured[name]["cannot"].items():
            print(f"{name:22} {contender:10} cannot: {reason}", flush=True)
        write({**about, "cases": measured}, options.output)


if __name__ == "__main__":
    main()
