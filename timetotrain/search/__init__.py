"""Searches over a configuration's fields: `python -m common.search mnist --space FIELD=VALUES`. TensorFlow-free."""
