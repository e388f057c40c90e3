"""Tests what TensorFlow loads as it starts, in a process of its own."""

import subprocess
import sys

_SHOWN = """
import sys, common, tensorflow as tf, tf_keras
from tensorflow.python.distribute.cluster_resolver import gce_cluster_resolver as gce
print(*sorted({"jax", "keras", "sklearn", "pandas", "scipy", "google.api_core"} & set(sys.modules)))
print(tf.keras.layers.Dense is tf_keras.layers.Dense, callable(gce.discovery.build))
import jax
import scipy.linalg
print("google.api_core" in sys.modules, jax.numpy.ones([2]).sum())
"""


def test_tensorflow_starts_without_packages_that_nothing_here_uses_through_it():
    done = subprocess.run([sys.executable, "-c", _SHOWN], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == ["", "True True", "True 2.0"], done.stdout + done.stderr
