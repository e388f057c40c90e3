"""Non-maximum suppression in tiles, batched over images and classes, with static shapes."""

from typing import NamedTuple

import tensorflow as tf

from common.detection import boxes as box_ops
from common.detection import topk
from common.layers.xla import under_xla

# Number of candidates compared at once. On accelerators, G6's SSD uses 256 and its Mask R-CNN 512 (docs/sources.md,
# mlperf 3.19). On a CPU, 128 takes 0.6 to 0.8 of the time of 256; 64 takes a little less, but twice as many loops.
TILE = 128
# Under XLA, the host waits for the device after every loop iteration, to learn whether the loop ends. So there are
# fewer, larger tiles, and several rounds per iteration. 512 is G6's tile for Mask R-CNN.
XLA_TILE, XLA_ROUNDS = 512, 4
# Classes suppressed at once: the comparisons of a tile take about 0.34 MB per class and image on a CPU, so that 5,000
# classes at once would take gigabytes. COCO's 80 stay one group.
CLASSES = 128


class Detections(NamedTuple):
    """The best detections of each image, best first; if an image has fewer, the rest are not `valid`."""

    boxes: tf.Tensor  # [b, n, 4], corners
    scores: tf.Tensor  # [b, n]
    classes: tf.Tensor  # int32 [b, n]
    valid: tf.Tensor  # bool [b, n]


def suppress(boxes: tf.Tensor, valid: tf.Tensor, threshold: float, tile: int | None = None) -> tf.Tensor:
    """Suppresses greedily: keeps a box, bool [..., n], unless it overlaps an earlier kept box by `threshold` or more.

    For each tile, the kept boxes of earlier tiles first suppress boxes in the tile. Then it repeats "keep the boxes
    that no earlier kept box suppresses" within the tile until nothing changes. After i rounds, the first i boxes equal
    the greedy result; after a round without changes, all do.

    Args:
      boxes: corners [..., n, 4], best first along n.
      valid: bool [..., n]; invalid boxes are not kept and suppress none.
      tile: boxes per tile; default TILE, or XLA_TILE under XLA.
    """
    boxes, valid = tf.stop_gradient(boxes), tf.convert_to_tensor(valid)
    compiled, count = under_xla(), boxes.shape[-2]
    tile, rounds = tile or (XLA_TILE if compiled else TILE), XLA_ROUNDS if compiled else 1
    survivors: list[tf.Tensor] = []
    for start in range(0, count, tile):
        tile_boxes = boxes[..., start : start + tile, :]
        remaining = valid[..., start : start + tile]
        if start:
            before = box_ops.overlap(tile_boxes, boxes[..., :start, :], threshold)
            remaining &= ~tf.reduce_any(before & tf.concat(survivors, -1)[..., None, :], -1)
        survivors.append(_within(tile_boxes, remaining, threshold, rounds))
    return tf.concat(survivors, -1)


def _in_groups(boxes: tf.Tensor, valid: tf.Tensor, threshold: float) -> tf.Tensor:
    """Like `suppress` for boxes [b, C, n, 4], but compares CLASSES classes at a time if there are more."""
    classes = valid.shape[1]
    if classes <= CLASSES:
        return suppress(boxes, valid, threshold)
    groups = -(-classes // CLASSES)

    def grouped(
        x: tf.Tensor,
    ) -> tf.Tensor:  # [groups, b, CLASSES, ...]; the last group is filled up with zeros.
        padded = tf.pad(x, [[0, 0], [0, groups * CLASSES - classes], *[[0, 0]] * (x.shape.rank - 2)])
        parts = tf.reshape(padded, [x.shape[0], groups, CLASSES, *x.shape[2:]])
        return tf.transpose(parts, [1, 0, *range(2, parts.shape.rank)])

    survivors = tf.map_fn(
        lambda group: suppress(*group, threshold),
        (grouped(boxes), grouped(valid)),
        fn_output_signature=tf.bool,
        parallel_iterations=1,
    )
    survivors = tf.transpose(survivors, [1, 0, 2, 3])  # [b, groups, CLASSES, n]
    return tf.reshape(survivors, [valid.shape[0], groups * CLASSES, -1])[:, :classes]


def _within(boxes: tf.Tensor, valid: tf.Tensor, threshold: float, rounds: int) -> tf.Tensor:
    """Suppresses within one tile by iterating to the fixed point, with `rounds` rounds per loop iteration."""
    size = boxes.shape[-2]
    earlier = tf.range(size) < tf.range(size)[:, None]
    # [..., j, i]: box i suppresses box j if kept
    overlaps = box_ops.overlap(boxes, boxes, threshold) & earlier

    def round_(_: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        after = mask
        for _ in range(rounds):
            before, after = after, valid & ~tf.reduce_any(overlaps & after[..., None, :], -1)
        return tf.reduce_any(after != before), after

    _, survivors = tf.while_loop(
        lambda changed, _: changed,
        round_,
        (tf.constant(True), valid),
        shape_invariants=(tf.TensorShape([]), valid.shape),
    )
    return survivors


def per_class(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    score_threshold: float,
    iou_threshold: float,
    candidates: int,
    detections: int,
    of_all_classes: int = 0,
) -> Detections:
    """Returns the detections of each image: suppression within each class, then the best of all classes, from 1.

    Args:
      boxes: corners [b, A, 4], one per anchor, or [b, A, C, 4], one per anchor and class.
      scores: [b, A, C], for the classes without the background.
      score_threshold: detections score more than this.
      candidates: number of best boxes considered in each class.
      detections: number of best detections returned for each image.
      of_all_classes: number of best (box, class) pairs of an image considered; 0: all.
    """
    classes = scores.shape[-1]
    if 0 < of_all_classes < scores.shape[1] * classes:
        flat = tf.reshape(scores, [-1, scores.shape[1] * classes])
        best_pairs = topk.topk_mask(flat, tf.fill([tf.shape(flat)[0]], of_all_classes), exact=True)
        scores = tf.where(tf.reshape(best_pairs, tf.shape(scores)), scores, tf.zeros_like(scores))
    candidates = min(candidates, scores.shape[1])
    best, index = tf.math.top_k(tf.transpose(scores, [0, 2, 1]), candidates)  # [b, C, k]
    if boxes.shape.rank == 4:
        best_boxes = tf.gather(tf.transpose(boxes, [0, 2, 1, 3]), index, batch_dims=2)
    else:
        best_boxes = tf.gather(boxes, index, batch_dims=1)
    survivors = _in_groups(best_boxes, best > score_threshold, iou_threshold)
    ranked = tf.where(survivors, best, -tf.ones_like(best))
    ranked = tf.reshape(ranked, [-1, classes * candidates])
    total = min(detections, classes * candidates)
    top, place = tf.math.top_k(ranked, total)
    valid = top >= 0
    return Detections(
        tf.gather(tf.reshape(best_boxes, [-1, classes * candidates, 4]), place, batch_dims=1),
        tf.where(valid, top, tf.zeros_like(top)),
        tf.where(valid, place // candidates + 1, 0),
        valid,
    )
