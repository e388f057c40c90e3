"""Search over the fields of a configuration: `python -m common.search mnist --space FIELD=VALUES`. TensorFlow-free."""
