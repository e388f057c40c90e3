"""Searches over a configuration's fields: `timetotrain search mnist --space FIELD=VALUES`. TensorFlow-free."""
