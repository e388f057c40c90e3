"""The contenders in TensorFlow of steps.py: ours, and each network as a user of Keras or tf-models writes it.

Arguments: "ours" or a peer's name, manifest ({"benchmark", "config"} as in an export). Both train the same network on
one batch in memory; `fit` runs one epoch of N steps, and nothing else in the measured time. Differences:

- ResNet-50, SSD: ours starts from uint8 pixels and normalizes them in the step. SSD's step also matches anchors and
  encodes boxes; `keras_fit` gets finished targets.
- Transformer: ours masks by segment and embeds explicit positions, as packed sequences need; tf-models masks padding
  and adds one fixed position signal.
- GNMT: ours reverses within each sentence and masks attention and loss; Keras has no such work.
"""

import importlib
import json
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from common.config.digest import from_dict
from common.config.schema import RunConfig
from common.data import pipeline
from common.distributed import replicas
from common.train.describe import parameters
from common.train.programs import Programs
from common.train.task import Task
from timetotrain.run import allocator

Run = Callable[[int], object]  # Runs N steps.
Contender = tuple[Run, tf.Module]  # How a contender runs, and its network.
L = tf_keras.layers


def fused_loop(make: Callable[[RunConfig, None], Task], config: RunConfig) -> Contender:
    """Returns the fused loop of `python -m BENCHMARK`, compiled as a run compiles it, on one synthetic batch.

    Args:
      make: the benchmark's `Task`, or a function that makes one from the configuration without data.
      config: a configuration for one replica.
    """
    allocator.keep_freed()
    loop = Programs(make(config, None), replicas.make(config))
    loop.compile()
    train, evaluation = loop.synthetic(True), loop.synthetic(False)
    return lambda steps: float(loop.call(train, evaluation, steps, 0).losses[-1]), loop.state.model


def set_policy(precision: str) -> None:
    """Sets Keras's global policy for "fp32" or "bf16"."""
    tf_keras.mixed_precision.set_global_policy({"fp32": "float32", "bf16": "mixed_bfloat16"}[precision])


def fit(model: tf_keras.Model, data: tf.data.Dataset) -> Run:
    """Returns a function that trains N steps and returns the last loss.

    Every call makes an iterator and drops it. With autotuning a call would take 1.27, 2.55, 5.11 or 10.23 seconds,
    whichever comes next (`common/data/pipeline.py`). The data is ready in memory and needs no tuning.
    """
    ready = pipeline.untuned(data)
    return lambda steps: model.fit(ready, steps_per_epoch=steps, verbose=0).history["loss"][-1]


def repeated(step: Callable[[], tf.Tensor]) -> Run:
    """Returns a function that runs a training step N times in one graph and returns the last loss."""

    @tf.function
    def train(steps: tf.Tensor) -> tf.Tensor:
        loss = tf.zeros([])
        for _ in tf.range(steps):
            loss = step()
        return loss

    return lambda steps: float(train(tf.constant(steps)))


def resnet(config: Any) -> Contender:
    """ResNet-50 v1.5 from stock layers under `fit`, with the reference's padding: label smoothing, SGD, no decay."""
    set_policy(config.precision)
    batch, pixels, classes = config.global_batch_size, config.image_size, config.num_classes

    def conv_norm(x: tf.Tensor, filters: int, size: int, stride: int = 1) -> tf.Tensor:
        if stride > 1 and size > 1:
            x = L.ZeroPadding2D(size // 2)(x)
        padding = "same" if stride == 1 else "valid"
        x = L.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer="he_normal")(x)
        return L.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    images = tf_keras.Input([pixels, pixels, 3])
    x = L.MaxPooling2D(3, 2, "same")(L.ReLU()(conv_norm(images, 64, 7, 2)))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            filters, stride = 64 * 2**stage, 2 if stage > 0 and block == 0 else 1
            y = L.ReLU()(conv_norm(x, filters, 1))
            y = L.ReLU()(conv_norm(y, filters, 3, stride))
            y = conv_norm(y, 4 * filters, 1)
            if block == 0:
                x = conv_norm(x, 4 * filters, 1, stride)
            x = L.ReLU()(L.Add()([y, x]))
    model = tf_keras.Model(images, L.Dense(classes, dtype="float32")(L.GlobalAveragePooling2D()(x)))
    loss = tf_keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=config.label_smoothing)
    model.compile(_sgd(config), loss)
    noise = tf.random.stateless_normal([batch, pixels, pixels, 3], [0, 0])
    labels = tf.one_hot(tf.range(batch) % classes, classes)
    return fit(model, tf.data.Dataset.from_tensors((noise, labels)).repeat()), model


def _sgd(config: Any) -> tf_keras.optimizers.Optimizer:
    return tf_keras.optimizers.SGD(config.optimizer.base_learning_rate, momentum=config.optimizer.momentum)


def _adam(config: Any, **more: float) -> tf_keras.optimizers.Optimizer:
    """Keras's fastest Adam: one kernel updates each variable."""
    o = config.optimizer
    adam = tf_keras.optimizers.legacy.Adam
    return adam(o.base_learning_rate, beta_1=o.beta_1, beta_2=o.beta_2, epsilon=o.epsilon, **more)


def ssd(config: Any) -> Contender:
    """SSD on the first stages of ResNet-34 from stock layers under `fit`: images -> [b, A, 4 + classes]."""
    import ssd.input as ssd_input
    from ssd import loss as multibox
    from ssd import model as network

    set_policy(config.precision)
    w = config.width

    def conv(x: tf.Tensor, filters: int, size: int, stride: int = 1, pad: int = 0, **bias: bool) -> tf.Tensor:
        same = stride == 1 and pad == size // 2
        x = L.ZeroPadding2D(pad)(x) if pad and not same else x
        return L.Conv2D(filters, size, stride, "same" if same else "valid", **bias)(x)

    def norm(x: tf.Tensor) -> tf.Tensor:
        return L.BatchNormalization(momentum=config.batch_norm_momentum, epsilon=config.batch_norm_epsilon)(x)

    images = tf_keras.Input([config.image_size, config.image_size, 3])
    x = L.ReLU()(norm(conv(images, w, 7, 2, 3, use_bias=False)))
    x = L.MaxPooling2D(3, 2)(L.ZeroPadding2D(1)(x))
    for stage, (blocks, stride) in enumerate(zip(network.BLOCKS, network.STRIDES)):
        for block in range(blocks):
            project = stage > 0 and block == 0
            filters, step = w * 2**stage, stride if project else 1
            y = L.ReLU()(norm(conv(x, filters, 3, step, 1, use_bias=False)))
            y = norm(conv(y, filters, 3, 1, 1, use_bias=False))
            x = norm(conv(x, filters, 1, step, use_bias=False)) if project else x
            x = L.ReLU()(L.Add()([y, x]))
    maps = [x]
    for squeeze, filters, stride, pad in network.extras(config):
        x = L.ReLU()(conv(L.ReLU()(conv(x, squeeze, 1)), filters, 3, stride, pad))
        maps.append(x)
    values = 4 + config.num_classes
    heads = [conv(x, n * values, 3, 1, 1) for x, n in zip(maps, config.sizes.per_cell)]
    join = L.Concatenate(axis=1, dtype="float32")
    model = tf_keras.Model(images, join([L.Reshape([-1, values])(head) for head in heads]))

    def loss(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        """SSD's loss in its usual form, for codes and class [b, A, 5]: it sorts to find hard negatives."""
        classes = tf.cast(targets[..., 4], tf.int32)
        positive = classes > 0
        count = tf.reduce_sum(tf.cast(positive, tf.int32), -1)
        # Keras takes the mean over the four codes.
        huber = 4 * tf_keras.losses.huber(targets[..., :4], outputs[..., :4])
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, outputs[..., 4:])
        order = tf.argsort(tf.where(positive, -1.0, entropy), direction="DESCENDING")
        hard = tf.argsort(order) < config.negatives_per_positive * count[:, None]
        total = tf.where(positive, huber, 0.0) + tf.where(positive | hard, entropy, 0.0)
        return tf.reduce_sum(total, -1) / tf.cast(tf.maximum(count, 1), tf.float32)

    # Our noise, normalized and matched once.
    batch = next(iter(ssd_input.synthetic(config, config.global_batch_size)))
    anchors = tf.constant(network.anchors(config), tf.float32)
    matched = multibox.targets(batch["boxes"], batch["classes"], anchors, config.match_overlap)
    targets = tf.concat([matched.codes, tf.cast(matched.classes, tf.float32)[..., None]], -1)
    model.compile(_sgd(config), loss)
    return fit(
        model, tf.data.Dataset.from_tensors((ssd_input.normalize(batch["image"]), targets)).repeat()
    ), model


def transformer(config: Any) -> Contender:
    """tf-models-official's Seq2SeqTransformer in a fused loop, with its translation task's step and its Adam."""
    from official.nlp.modeling.models import seq2seq_transformer as official

    sizes = {
        "num_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.hidden,
        "dropout_rate": config.residual_dropout,
        "attention_dropout_rate": config.attention_dropout,
        "intermediate_dropout": config.relu_dropout,
        "norm_first": True,
        "use_bias": False,
    }
    classes, part = config.vocabulary_size, config.label_smoothing
    model = official.Seq2SeqTransformer(
        classes,
        config.width,
        config.residual_dropout,
        encoder_layer=official.TransformerEncoder(**sizes),
        decoder_layer=official.TransformerDecoder(**sizes),
    )
    optimizer = _adam(config)
    shape = [2, config.global_batch_size, config.packed_length]
    sources, labels = tf.unstack(tf.random.stateless_uniform(shape, [0, 0], 2, classes, tf.int32))
    tokens = {"inputs": sources, "targets": labels}
    model(tokens, training=True)  # Creates the variables.

    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(tokens, training=True)
            targets = tf.one_hot(labels, classes, 1 - part, part / (classes - 1))
            losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
            real = tf.cast(labels != 0, tf.float32)
            loss = tf.reduce_sum(losses * real) / tf.reduce_sum(real)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return repeated(step), model


def gnmt(config: Any) -> Contender:
    """The reference network from stock layers under `fit`, with Keras's fast options: unrolled loops, legacy Adam."""
    length, width, classes = config.max_sequence_length, config.width, config.vocabulary_size
    part, table = config.label_smoothing, L.Embedding(classes, width)

    def recurrent() -> L.Layer:
        return L.LSTM(width, return_sequences=True, unroll=True)

    def drop(x: tf.Tensor) -> tf.Tensor:
        return L.Dropout(config.dropout)(x)

    source, target = (tf_keras.Input([length], dtype=tf.int32) for _ in range(2))
    x = L.Bidirectional(recurrent())(drop(table(source)))
    for i in range(config.layers - 1):
        y = recurrent()(drop(x))
        x = y + x if i else y
    memory = x
    x = recurrent()(drop(table(tf.pad(target, [[0, 0], [1, 0]], constant_values=1)[:, :-1])))
    context = _Attention(width)(x, memory)
    for i in range(config.layers - 1):
        y = recurrent()(drop(L.Concatenate()([x, context])))
        x = y + x if i else y
    model = tf_keras.Model((source, target), L.Dense(classes)(x))

    def losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        targets = tf.one_hot(tf.cast(labels, tf.int32), classes, 1 - part + part / classes, part / classes)
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)

    # Ours sums the loss over a sentence's tokens, Keras takes the mean.
    model.compile(_adam(config, global_clipnorm=config.optimizer.clip_replica_norm / length), losses)
    shape = [2, config.global_batch_size, length]
    sources, labels = tf.unstack(tf.random.stateless_uniform(shape, [0, 0], 3, classes, tf.int32))
    return fit(model, tf.data.Dataset.from_tensors(((sources, labels), labels)).repeat()), model


class _Attention(L.Layer):
    """Normed Bahdanau attention, which neither Keras nor tf-models-official has."""

    def __init__(self, width: int):
        super().__init__()
        self.query, self.memory = L.Dense(width), L.Dense(width, use_bias=False)
        self.direction = self.add_weight("direction", [width])
        self.scale = self.add_weight("scale", [], initializer=tf_keras.initializers.Constant(width**-0.5))

    def call(self, queries: tf.Tensor, memory: tf.Tensor) -> tf.Tensor:
        direction = self.scale * tf.math.l2_normalize(self.direction)
        sums = self.query(queries)[:, :, None] + self.memory(memory)[:, None]
        weights = tf.nn.softmax(tf.reduce_sum(tf.tanh(sums) * direction, -1))
        return tf.matmul(weights, memory)


PEERS = {f.__name__: f for f in (resnet, ssd, transformer, gnmt)}


def make(name: str, manifest: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that trains N steps, facts about the contender)."""
    content = json.loads(manifest)
    benchmark = content["benchmark"]
    config = from_dict(importlib.import_module(f"{benchmark}.config").Config, content["config"])
    task = importlib.import_module(f"{benchmark}.task").Task
    run, network = fused_loop(task, config) if name == "ours" else PEERS[benchmark](config)
    return run, {"version": tf.__version__, "parameters": parameters(network)}
