"""The TensorFlow contenders of resnet_step.py.

Arguments: contender, precision, batch, pixels. All train the same network (ResNet-50 v1.5, label smoothing .1, SGD
with momentum .9, no weight decay) on one batch in memory. Ours starts from uint8 pixels and normalizes them in the
step, as a real run does; the others get normalized floats. tf-models-official's network pads strided convolutions
"same", which costs less.
"""

from __future__ import annotations

from collections.abc import Callable

import orbit
import tensorflow as tf
import tf_keras
from official.vision.modeling import classification_model
from official.vision.modeling.backbones import resnet as tfm_resnet

from common.config.schema import Optimizer, Schedule
from lab.bench.contenders.tensorflow_loops import fit, fused_loop, set_policy
from resnet.config import Config
from resnet.task import Task

CLASSES, RATE, MOMENTUM, SMOOTHING = 1000, 0.01, 0.9, 0.1
Run = Callable[[int], float]  # trains N steps, returns the last loss


def config_of(precision: str, batch: int, pixels: int, optimizer: str = "sgd") -> Config:
    """ResNet-50 on one replica."""
    return Config(
        image_size=pixels,
        num_classes=CLASSES,
        label_smoothing=SMOOTHING,
        global_batch_size=batch,
        eval_batch_size=batch,
        num_train_examples=batch * 10_000,
        num_eval_examples=batch,
        precision=precision,
        replicas="single",
        optimizer=Optimizer(name=optimizer, base_learning_rate=RATE, momentum=MOMENTUM),
        schedule=Schedule(kind="constant", warmup_epochs=0),
    )


def ours(precision: str, batch: int, pixels: int, optimizer: str = "sgd") -> Run:
    """The fused loop of `python -m resnet`."""
    return fused_loop(Task, config_of(precision, batch, pixels, optimizer), precompiled=True)[0]


def ours_lars(precision: str, batch: int, pixels: int) -> Run:
    """Ours with the optimizer of the large-batch presets, which does more work."""
    return ours(precision, batch, pixels, "lars")


def tfm_orbit(precision: str, batch: int, pixels: int) -> Run:
    """tf-models-official's backbone and head under orbit's StandardTrainer, whose loop is also fused."""
    set_policy(precision)
    specs = tf_keras.layers.InputSpec(shape=[None, pixels, pixels, 3])
    backbone = tfm_resnet.ResNet(50, input_specs=specs, norm_momentum=0.9, norm_epsilon=1e-5)
    model = classification_model.ClassificationModel(backbone, num_classes=CLASSES, input_specs=specs)
    optimizer = tf_keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    loss_of = _loss()

    class Trainer(orbit.StandardTrainer):
        def __init__(self):
            super().__init__(_dataset(batch, pixels))
            self.mean_loss = tf_keras.metrics.Mean()

        def train_loop_begin(self) -> None:
            self.mean_loss.reset_states()

        def train_step(self, iterator: tf.data.Iterator) -> None:
            images, labels = next(iterator)
            with tf.GradientTape() as tape:
                logits = tf.cast(model(images, training=True), tf.float32)
                loss = loss_of(labels, logits)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            self.mean_loss.update_state(loss)

        def train_loop_end(self) -> tf.Tensor:
            return self.mean_loss.result()

    trainer = Trainer()
    return lambda steps: float(trainer.train(tf.constant(steps)))


def keras_fit(precision: str, batch: int, pixels: int) -> Run:
    """The same network from stock layers under `fit`; each call is one epoch of `steps` batches."""
    set_policy(precision)
    model = _stock_resnet50(pixels)
    model.compile(tf_keras.optimizers.SGD(RATE, momentum=MOMENTUM), _loss())
    data = _dataset(batch, pixels)
    return fit(model, data)


def _stock_resnet50(pixels: int) -> tf_keras.Model:
    """ResNet-50 v1.5 from stock layers under the global policy, with the reference's padding."""
    layers = tf_keras.layers

    def conv_norm(x: tf.Tensor, filters: int, size: int, stride: int = 1) -> tf.Tensor:
        if stride > 1 and size > 1:
            x = layers.ZeroPadding2D(size // 2)(x)
        padding = "same" if stride == 1 else "valid"
        x = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer="he_normal")(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    images = tf_keras.Input([pixels, pixels, 3])
    x = layers.MaxPooling2D(3, 2, "same")(layers.ReLU()(conv_norm(images, 64, 7, 2)))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            filters, stride = 64 * 2**stage, 2 if stage > 0 and block == 0 else 1
            y = layers.ReLU()(conv_norm(x, filters, 1))
            y = layers.ReLU()(conv_norm(y, filters, 3, stride))
            y = conv_norm(y, 4 * filters, 1)
            if block == 0:
                x = conv_norm(x, 4 * filters, 1, stride)
            x = layers.ReLU()(layers.Add()([y, x]))
    x = layers.GlobalAveragePooling2D()(x)
    return tf_keras.Model(images, layers.Dense(CLASSES, dtype="float32")(x))


def _loss() -> tf_keras.losses.Loss:
    return tf_keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING)


def _dataset(batch: int, pixels: int) -> tf.data.Dataset:
    images = tf.random.stateless_normal([batch, pixels, pixels, 3], [0, 0])
    labels = tf.one_hot(tf.range(batch) % CLASSES, CLASSES)
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


CONTENDERS = {"ours": ours, "ours_lars": ours_lars, "tfm_orbit": tfm_orbit, "keras_fit": keras_fit}


def make(name: str, precision: str, batch: str, pixels: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that trains N steps, facts about the contender)."""
    return CONTENDERS[name](precision, int(batch), int(pixels)), {"version": tf.__version__}
