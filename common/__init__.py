"""Code that all benchmarks share; imports no benchmark."""

import os
import platform
import warnings

from common.tensorflow_start import install

# Set before TensorFlow is imported: hides its C++ start-up messages.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The networks are tf_keras's. Otherwise TensorFlow also loads Keras 3, and with it scikit-learn and SciPy.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
if platform.machine() in ("x86_64", "AMD64"):
    # By default TensorFlow uses oneDNN's kernels only on processors with VNNI, bf16 or AMX. On two AVX2 cores a step
    # with them takes 0.80 of the time for ResNet-50, 0.89 to 0.94 for the perceptron, 0.91 for the MNIST LSTM and 0.96
    # to 1.11 for PTB.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Comes from a dependency of tf-models-official that announces when it drops this version of Python.
warnings.filterwarnings("ignore", message="You are using a Python version", category=FutureWarning)

install()
