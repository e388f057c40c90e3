"""The TensorFlow contenders of steps.py's ResNet-50.

Arguments: contender, "train", manifest ({"config": a resnet configuration}). All train the same network (ResNet-50
v1.5, label smoothing, SGD with momentum, no weight decay) on one batch in memory. Ours starts from uint8 pixels and
normalizes them in the step, as a real run does; the others get normalized floats. tf-models-official's network pads
strided convolutions "same", which costs less.
"""

from functools import partial

import orbit
import tensorflow as tf
import tf_keras
from official.vision.modeling import classification_model
from official.vision.modeling.backbones import resnet as tfm_resnet

from lab.bench.contenders.tensorflow_loops import Made, fit, fused_loop, maker, set_policy
from resnet.config import Config
from resnet.task import Task


def tf_orbit(config: Config) -> Made:
    """tf-models-official's backbone and head under orbit's StandardTrainer, whose loop is also fused."""
    set_policy(config.precision)
    specs = tf_keras.layers.InputSpec(shape=[None, config.image_size, config.image_size, 3])
    backbone = tfm_resnet.ResNet(50, input_specs=specs, norm_momentum=0.9, norm_epsilon=1e-5)
    model = classification_model.ClassificationModel(
        backbone, num_classes=config.num_classes, input_specs=specs
    )
    optimizer, loss_of = _optimizer(config), _loss(config)

    class Trainer(orbit.StandardTrainer):
        def __init__(self):
            super().__init__(_dataset(config))
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
    return lambda steps: float(trainer.train(tf.constant(steps))), model


def keras_fit(config: Config) -> Made:
    """The same network from stock layers under `fit`; each call is one epoch of `steps` batches."""
    set_policy(config.precision)
    model = _stock_resnet50(config)
    model.compile(_optimizer(config), _loss(config))
    return fit(model, _dataset(config)), model


def _stock_resnet50(config: Config) -> tf_keras.Model:
    """ResNet-50 v1.5 from stock layers under the global policy, with the reference's padding."""
    layers = tf_keras.layers

    def conv_norm(x: tf.Tensor, filters: int, size: int, stride: int = 1) -> tf.Tensor:
        if stride > 1 and size > 1:
            x = layers.ZeroPadding2D(size // 2)(x)
        padding = "same" if stride == 1 else "valid"
        x = layers.Conv2D(filters, size, stride, padding, use_bias=False, kernel_initializer="he_normal")(x)
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)

    images = tf_keras.Input([config.image_size, config.image_size, 3])
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
    return tf_keras.Model(images, layers.Dense(config.num_classes, dtype="float32")(x))


def _optimizer(config: Config) -> tf_keras.optimizers.Optimizer:
    return tf_keras.optimizers.SGD(config.optimizer.base_learning_rate, momentum=config.optimizer.momentum)


def _loss(config: Config) -> tf_keras.losses.Loss:
    return tf_keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=config.label_smoothing)


def _dataset(config: Config) -> tf.data.Dataset:
    batch, pixels, classes = config.global_batch_size, config.image_size, config.num_classes
    images = tf.random.stateless_normal([batch, pixels, pixels, 3], [0, 0])
    return tf.data.Dataset.from_tensors((images, tf.one_hot(tf.range(batch) % classes, classes))).repeat()


make = maker(Config, ours=partial(fused_loop, Task, precompiled=True), tf_orbit=tf_orbit, keras_fit=keras_fit)
