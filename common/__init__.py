"""Everything two benchmarks share; knows no benchmark."""

import os
import warnings

# Before anything imports TensorFlow: its C++ start-up messages are no errors of ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# A dependency of tf-models-official announces when it will drop this version of Python.
warnings.filterwarnings("ignore", message="You are using a Python version", category=FutureWarning)
