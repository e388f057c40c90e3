"""Checks MLPerf Training logs and submission trees, explains the rules, reports and packages.

`python -m compliance` is the command line, `compliance.check` and `compliance.log.engine` the library. Free of
TensorFlow; only the standard library is imported until a command needs more.
"""
