"""Tests proposals, samples, targets and the five losses: hand-computed cases, and a transcription in numpy loops."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers.precision import precision
from common.train.task import Reduction
from maskrcnn import loss, model, roi, rpn
from tests.maskrcnn import small

DELTA = 1 / 9


def value(term) -> float:
    assert term.reduction is Reduction.REPLICA
    return float(term.total / term.weight)


def regions(classes, codes=None, valid=None) -> roi.Regions:
    classes = tf.constant(classes, tf.int32)
    shape = classes.shape
    codes = tf.zeros([*shape, 4], tf.float64) if codes is None else tf.constant(codes, tf.float64)
    valid = tf.fill(shape, True) if valid is None else tf.constant(valid)
    return roi.Regions(tf.zeros([*shape, 4], tf.float64), valid, classes, codes, tf.zeros(shape, tf.int32))


def doubles(x) -> tf.Tensor:
    return tf.constant(x, tf.float64)


# -- By hand -------------------------------------------------------------------------------------------------


def test_rpn_score_is_divided_by_all_anchors_wanted_per_image():
    """ln 2 for each of five sampled anchors of logit 0, in two images that sample 8 each; others do not count."""
    positive = tf.constant([[True, False, False, False], [True, True, False, False]])
    negative = tf.constant([[False, True, False, False], [False, False, True, False]])
    expected = rpn.Targets(tf.zeros([2, 4, 4], tf.float64), positive, negative)
    logits = [doubles([[0, 0], [0, 0]]), doubles([[9, 9], [0, 9]])]
    one = doubles([1, 1])
    assert value(loss.rpn_score_loss(logits, expected, one, 8)) == pytest.approx(
        5 * math.log(2) / 16, rel=1e-12
    )
    # Without the second image.
    loss_sum = loss.rpn_score_loss(logits, expected, doubles([1, 0]), 8)
    assert value(loss_sum) == pytest.approx(2 * math.log(2) / 8, rel=1e-12)


def test_rpn_box_is_a_mean_per_level_and_a_sum_of_levels():
    positive = tf.constant([[True, False, True, True]])
    targets = rpn.Targets(doubles(np.zeros([1, 4, 4])), positive, ~positive)
    first = np.array([[[1.0, 0, 0, 0], [7, 7, 7, 7]]])  # one of two anchors counts
    second = np.array([[[0.09, 0.09, 0, 0], [0, 0, 0, 1.0]]])
    codes = [doubles(first), doubles(second), doubles(np.zeros([1, 0, 4]))]
    big, little = (1 - 1 / 18) / 9, 0.00405
    expected = big / 4 + (2 * little + big) / 8
    assert value(loss.rpn_box_loss(codes, targets, doubles([1]))) == pytest.approx(expected, rel=1e-12)


def test_rpn_losses_of_the_reference_are_divided_by_all_sampled_anchors():
    positive, negative = tf.constant([[True, False, True, False]]), tf.constant([[False, True, False, False]])
    targets = rpn.Targets(doubles(np.zeros([1, 4, 4])), positive, negative)
    logits = [doubles([[0, 0]]), doubles([[0, 9]])]
    assert value(loss.rpn_score_loss(logits, targets, doubles([1]), 0)) == pytest.approx(
        math.log(2), rel=1e-12
    )
    codes = [doubles([[[1.0, 0, 0, 0], [7, 7, 7, 7]]]), doubles([[[0, 0.09, 0, 0], [7, 7, 7, 7]]])]
    # PyTorch's smooth L1 of beta: e^2 / (2 beta) below beta, and |e| - beta / 2 above.
    expected = ((1 - 1 / 18) + 0.09**2 * 9 / 2) / 3
    actual = loss.rpn_box_loss_of_samples(codes, targets, doubles([1]))
    assert value(actual) == pytest.approx(expected, rel=1e-12)
    # An image of weight 0 counts in neither.
    two = rpn.Targets(*(tf.repeat(x, 2, axis=0) for x in targets))
    actual = loss.rpn_box_loss_of_samples([tf.repeat(x, 2, axis=0) for x in codes], two, doubles([1, 0]))
    assert value(actual) == pytest.approx(expected, rel=1e-12)


def test_the_box_loss_of_the_reference_is_divided_by_all_regions():
    """With 8 of 512 regions positive, a mean over them is 16 times the reference's loss."""
    rng = np.random.default_rng(0)
    expected = regions([[1] * 8 + [0] * 504], np.zeros([1, 512, 4]))
    codes = doubles(rng.normal(size=[1, 512, 2, 4]))
    google = value(loss.box_loss(codes, expected, doubles([1])))
    assert google / value(loss.box_loss(codes, expected, doubles([1]), of_samples=True)) == pytest.approx(16)
    valid = [[True] * 256 + [False] * 256]
    fewer = value(
        loss.box_loss(codes, expected._replace(valid=tf.constant(valid)), doubles([1]), of_samples=True)
    )
    assert google / fewer == pytest.approx(8)


def test_class_is_a_mean_over_regions_that_there_are():
    logits = doubles([[[0, 0], [0, math.log(3)], [5, 5]]])
    loss_sum = loss.class_loss(logits, regions([[1, 1, 0]], valid=[[True, True, False]]), doubles([1]))
    assert value(loss_sum) == pytest.approx((math.log(2) + math.log(4 / 3)) / 2, rel=1e-12)


def test_without_objects_the_losses_of_objects_are_zero_over_zero_weight():
    nothing = regions([[0, 0]])
    for term in (
        loss.box_loss(doubles(np.ones([1, 2, 3, 4])), nothing, doubles([1])),
        loss.mask_loss(
            doubles(np.ones([1, 2, 2, 2])), doubles(np.ones([1, 2, 2, 2])), nothing.classes, doubles([1])
        ),
    ):
        assert (float(term.total), float(term.weight)) == (0, 0)
    targets = rpn.Targets(
        doubles(np.zeros([1, 2, 4])), tf.constant([[False, False]]), tf.constant([[True, True]])
    )
    assert value(loss.rpn_box_loss([doubles(np.ones([1, 2, 4]))], targets, doubles([1]))) == 0


# -- A transcription -----------------------------------------------------------------------------------------


def overlap(a, b) -> float:
    height = max(min(a[2], b[2]) - max(a[0], b[0]), 0)
    width = max(min(a[3], b[3]) - max(a[1], b[1]), 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - height * width
    return height * width / union if union > 0 else 0.0


def centered(box):
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0], box[3] - box[1]


def cornered(anchor):
    y, x, h, w = anchor
    return np.array([y - h / 2, x - w / 2, y + h / 2, x + w / 2])


def encoded(box, reference, weights):
    y, x, h, w = centered(box)
    v, u, m, n = reference
    return np.array([(y - v) / m, (x - u) / n, math.log(h / m), math.log(w / n)]) * weights


def decoded(code, reference):
    v, u, m, n = reference
    h, w = (s * math.exp(min(c, math.log(1000 / 16))) for c, s in zip(code[2:], (m, n)))
    return cornered((v + code[0] * m, u + code[1] * n, h, w))


def proposed(logits, codes, anchors, info, candidates, proposals, threshold):
    """The proposals of one image: [(score, box)], best first."""
    kept_of_all = []
    for scores, level_codes, level_anchors in zip(logits, codes, anchors):
        order = sorted(range(len(scores)), key=lambda i: -scores[i])[:candidates]  # noqa: B023
        picks = []
        for i in order:
            box = np.clip(decoded(level_codes[i], level_anchors[i]), 0, [info[0], info[1]] * 2)
            empty = box[2] <= box[0] or box[3] <= box[1]
            if not empty and all(overlap(box, other) < threshold for _, other in picks):
                picks.append((scores[i], box))
        kept_of_all += picks
    return sorted(kept_of_all, key=lambda item: -item[0])[:proposals]


def draw(candidates, noise, count):
    return sorted(sorted(candidates, key=lambda i: -noise[i])[:count])


def huber(error, delta):
    error = abs(error)
    return error * error / 2 if error < delta else delta * (error - delta / 2)


def entropy(logit, target):
    return max(logit, 0) - logit * target + math.log1p(math.exp(-abs(logit)))


class Transcription:
    """Mask R-CNN's samples, targets and losses of a batch, object by object, from the first stage's outputs."""

    def __init__(self, net, arrays, step, config):
        self.net, self.config, self.arrays, self.step = net, config, arrays, step
        self.shape = arrays["image"].shape[1:3]
        self.images = range(len(arrays["image"]))

    def objects(self, image):
        rows = zip(self.arrays["boxes"][image], self.arrays["classes"][image], self.arrays["masks"][image])
        return [(box.astype(np.float64), int(c), m) for box, c, m in rows if c > 0]

    def noise(self, image, added, count):
        key = [(self.config.seed + added) * 2**32 + self.step, self.arrays["image_id"][image]]
        blocks = -(-count // 4)
        bits = tf.random.stateless_uniform(
            [blocks, 4], tf.constant(key, tf.int64), None, None, tf.int32, alg="philox"
        )
        # Word k of block j is number k * blocks + j.
        return bits.numpy().T.ravel()[:count] % 2**24 / 2**24

    def anchors_wanted(self, image, anchors):
        """(positive {anchor: code}, negative [anchor]) of one image."""
        objects, flat = self.objects(image), np.concatenate(anchors)
        iou = np.array([[overlap(cornered(a), box) for box, _, _ in objects] for a in flat])
        owner = iou.argmax(1)
        positive, negative = iou.max(1) >= 0.7, iou.max(1) < 0.3
        for g in reversed(range(len(objects))):
            best = iou[:, g].argmax()
            owner[best], positive[best], negative[best] = g, True, False
        if self.config.details.rpn_inside:  # After the matching, which crossing anchors take part in.
            end = self.arrays["image_info"][image][[0, 1]]
            inside = [(cornered(a)[:2] >= 0).all() and (cornered(a)[2:] <= end).all() for a in flat]
            assert 0 < np.sum(inside) < len(flat)
            positive, negative = positive & inside, negative & inside
        noise = self.noise(image, 1, len(flat))
        picks = draw(positive.nonzero()[0], noise, self.config.sizes.rpn_batch // 2)
        rest = draw(negative.nonzero()[0], noise, self.config.sizes.rpn_batch - len(picks))
        return {i: encoded(objects[owner[i]][0], flat[i], (1, 1, 1, 1)) for i in picks}, rest

    def regions_wanted(self, image, proposals):
        """[(box, class, object's number)] of one image, those with an object first."""
        objects, config = self.objects(image), self.config
        # Padded proposals and objects keep their places in the noise.
        places = [(i, box) for i, (_, box) in enumerate(proposals)]
        first = min(config.sizes.rpn_post_nms, self.available)
        places += [
            (first + i, box.astype(np.float64))
            for i, (box, c) in enumerate(zip(self.arrays["boxes"][image], self.arrays["classes"][image]))
            if c > 0
        ]
        noise = self.noise(image, 2, config.sizes.rpn_post_nms + config.max_instances)
        box_at, best = dict(places), {}
        for i, box in places:
            ious = [overlap(box, other) for other, _, _ in objects]
            best[i] = int(np.argmax(ious)), max(ious)
        limit = int(config.sizes.roi_batch * 0.25)
        picks = draw([i for i, (_, iou) in best.items() if iou >= 0.5], noise, limit)
        rest = draw(
            [i for i, (_, iou) in best.items() if iou < 0.5], noise, config.sizes.roi_batch - len(picks)
        )
        pairs = [(box_at[i], objects[best[i][0]][1], best[i][0]) for i in picks]
        return pairs + [(box_at[i], 0, None) for i in rest]

    def mask_wanted(self, region, box, mask):
        size, number = self.config.mask_size, len(mask)
        padded, actual = np.pad(mask.astype(float), 1), np.zeros([size, size])
        for i in range(size):
            for j in range(size):
                y = (region[0] + (region[2] - region[0]) * (i + 0.5) / size - box[0]) / (box[2] - box[0])
                x = (region[1] + (region[3] - region[1]) * (j + 0.5) / size - box[1]) / (box[3] - box[1])
                y, x = y * number + 0.5, x * number + 0.5
                if 0 <= y < number + 1 and 0 <= x < number + 1:
                    a, b = int(y), int(x)
                    v, u = y - a, x - b
                    upper = (1 - u) * padded[a, b] + u * padded[a, b + 1]
                    lower = (1 - u) * padded[a + 1, b] + u * padded[a + 1, b + 1]
                    actual[i, j] = (1 - v) * upper + v * lower >= 0.5
        return actual

    def losses(self):
        config, net = self.config, self.net
        features = net.features(tf.constant(self.arrays["image"]), training=True)
        logits, codes = ([x.numpy() for x in part] for part in (features.logits, features.codes))
        anchors = model.anchors(config, *self.shape)
        self.available = len(anchors) * max(min(config.sizes.rpn_pre_nms, len(a)) for a in anchors)
        starts = np.cumsum([0, *map(len, anchors)])
        score, box_sums, box_counts = 0.0, np.zeros(len(anchors)), np.zeros(len(anchors))
        sampled = 0
        classes, boxes, masks = [], [], []
        for image in self.images:
            positive, negative = self.anchors_wanted(image, anchors)
            flat_logits = np.concatenate([x[image] for x in logits])
            flat_codes = np.concatenate([x[image] for x in codes])
            sampled += len(positive) + len(negative)
            score += sum(entropy(flat_logits[i], 1) for i in positive)
            score += sum(entropy(flat_logits[i], 0) for i in negative)
            for i, code in positive.items():
                level = np.searchsorted(starts, i, "right") - 1
                box_sums[level] += sum(huber(e, DELTA) for e in flat_codes[i] - code)
                box_counts[level] += 4
            limits = config.sizes.rpn_pre_nms, config.sizes.rpn_post_nms, config.rpn_nms_iou
            of_image = [x[image] for x in logits], [x[image] for x in codes]
            samples = proposed(*of_image, anchors, self.arrays["image_info"][image], *limits)
            targets = self.regions_wanted(image, samples)
            outputs, of_all_classes = self.second_stage(features.maps, image, targets)
            for n, (box, label, number) in enumerate(targets):
                row = outputs.logits[0, n].numpy()
                classes.append(math.log(np.exp(row - row.max()).sum()) + row.max() - row[label])
                if label:
                    target, _, mask = self.objects(image)[number]
                    code = encoded(target, centered(box), (10, 10, 5, 5))
                    boxes += [huber(e, 1) for e in outputs.codes[0, n, label].numpy() - code]
                    pixels = self.mask_wanted(box, target, mask)
                    logit = of_all_classes[0, n, :, :, label].numpy()
                    masks += [entropy(a, b) for a, b in zip(logit.ravel(), pixels.ravel())]
        of_samples = (
            config.details.loss_divisors == "sampled"
        )  # Then smooth L1 of beta is Huber's loss over beta.
        means = (box_sums / np.maximum(box_counts, 1)).sum()
        return {
            "rpn_score": score / (sampled if of_samples else len(self.images) * config.sizes.rpn_batch),
            "rpn_box": box_sums.sum() / DELTA / sampled if of_samples else means,
            "class": np.mean(classes),
            "box": sum(boxes) / len(classes if of_samples else boxes),
            "mask": np.mean(masks),
        }

    def second_stage(self, maps, image, targets):
        boxes = tf.constant(np.stack([box for box, _, _ in targets])[None])
        maps = [x[image : image + 1] for x in maps]
        return self.net.heads(maps, boxes), self.net.mask_head(self.net.crops[1](maps, boxes))


@functools.cache
def network() -> model.MaskRCNN:
    net = model.build(small.config(), Single(), precision("fp64"))
    small.randomize(net.trainable_variables, 3)
    return net


@pytest.mark.parametrize(
    ("shape", "seed", "divisors"),
    [
        ((64, 128), 0, "positives"),
        ((64, 128), 0, "sampled"),
        pytest.param((128, 64), 1, "positives", marks=pytest.mark.e2e),
    ],
)
def test_losses_equal_the_transcription(shape, seed, divisors):
    net = network()
    config = small.config(loss_divisors=divisors, rpn_inside=divisors == "sampled")
    arrays = small.batch(config, shape, seed=seed)
    batch = small.tensors(arrays)

    def losses(step: int) -> dict[str, float]:
        terms = loss.losses(net, batch, config, tf.constant(step, tf.int64))
        return {name: value(term) for name, term in terms.items()}

    actual = losses(7)
    expected = Transcription(net, arrays, 7, config).losses()
    assert actual == pytest.approx(expected, rel=1e-8)
    # The two samples depend on the step and the images.
    again = losses(8)
    assert all(again[name] != actual[name] for name in ("rpn_score", "class"))


def test_an_image_of_weight_0_does_not_count():
    net = network()
    arrays = small.batch(net.config, (64, 128), seed=2)
    # Without training, because batch statistics would make an image's outputs depend on the other image.
    features, net.features = net.features, lambda image, training: features(image, training=False)
    try:
        one = {k: x[:1] for k, x in arrays.items()}
        arrays["weight"] = np.array([1, 0], np.float32)
        step = tf.constant(0, tf.int64)
        both = {k: value(t) for k, t in loss.losses(net, small.tensors(arrays), net.config, step).items()}
        alone = {k: value(t) for k, t in loss.losses(net, small.tensors(one), net.config, step).items()}
    finally:
        del net.features
    assert both == pytest.approx(alone, rel=1e-8)


def test_proposals_equal_the_loop_also_compiled():
    rng, shape = np.random.default_rng(4), (64, 128)
    config = small.config()
    anchors = model.anchors(config, *shape)
    logits = [rng.normal(size=[2, len(a)]) for a in anchors]
    codes = [rng.normal(0, 0.3, [2, len(a), 4]) for a in anchors]
    info = np.array([[60, 128, 1], [64, 100, 1]], np.float32)
    for candidates, proposals, threshold in ((40, 30, 0.7), (20, 200, 0.4)):

        def propose(*args, limits=(candidates, proposals, threshold)):
            return rpn.propose(args[0], args[1], anchors, args[2], *limits)

        args = [doubles(x) for x in logits], [doubles(x) for x in codes], tf.constant(info)
        for jit in (False, True):
            actual = tf.function(propose, jit_compile=jit, autograph=False)(*args)
            for image in range(2):
                rows = [x[image] for x in logits], [x[image] for x in codes]
                expected = proposed(*rows, anchors, info[image], candidates, proposals, threshold)
                count = int(actual.valid[image].numpy().sum())
                assert count == len(expected) > 20 and actual.valid[image].numpy()[:count].all()
                boxes = np.stack([box for _, box in expected])
                np.testing.assert_allclose(actual.boxes[image][:count], boxes, rtol=1e-8, atol=1e-8)
