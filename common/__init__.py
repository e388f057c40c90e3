"""Everything two benchmarks share; knows no benchmark."""

import os
import platform
import warnings

# Before anything imports TensorFlow: its C++ start-up messages are no errors of ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if platform.machine() in ("x86_64", "AMD64"):
    # By itself TensorFlow takes oneDNN's kernels only on processors with VNNI, bf16 or AMX. On two cores of AVX2 they
    # take 0.80 of ResNet-50's step, 0.89 to 0.94 of the perceptron's, 0.91 of the MNIST LSTM's, 0.96 to 1.11 of PTB's.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# A dependency of tf-models-official announces when it will drop this version of Python.
warnings.filterwarnings("ignore", message="You are using a Python version", category=FutureWarning)
