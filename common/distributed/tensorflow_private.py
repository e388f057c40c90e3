"""Names that TensorFlow and Keras do not publish, and why this project needs them. A new version may move them.

The other files take them from here, except StableHLO's, which is loaded late (common/distributed/stablehlo.py).
"""
# ruff: noqa: F401

# XLA's operations that `tf.` does not have: dynamic slices, barriers, reductions of tensors, calls of StableHLO.
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

# Products of a stated precision: `tf.matmul` takes none.
from tensorflow.compiler.tf2xla.python import xla
from tensorflow.compiler.xla import xla_data_pb2

# Settings of the server through which processes find each other, for `context` below.
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2

# The format of SavedModel, to check a stranger's file before TensorFlow reads it.
from tensorflow.core.protobuf import saved_model_pb2

# A strategy's value of several replicas: strategies make them only from their own results.
from tensorflow.python.distribute.values import PerReplica

# `context`: `tf.config` cannot set how long a lost process may be silent. `record`: the gradient of a collective, for
# which tf.custom_gradient would search the graph behind the result, for minutes.
from tensorflow.python.eager import context, record

# The TPU's collectives over groups of replicas: its strategy has only sums over all.
from tensorflow.python.tpu.ops import tpu_ops

# Keeps a layer of mixed precision from casting a variable, where a product must be rounded once.
from tf_keras.src.mixed_precision.autocast_variable import enable_auto_cast_variables

# Whether XLA compiles the graph under construction.
from tf_keras.src.utils.control_flow_util import GraphOrParentsInXlaContext
