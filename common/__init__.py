"""Everything two benchmarks share; knows no benchmark."""

import os

# Before anything imports TensorFlow: its C++ start-up messages are no errors of ours.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
