"""Exports steps as StableHLO that any PJRT client runs: `python -m BENCHMARK --export=DIR`, see docs/replay.md.

lab/bench/replay.py, which runs an export, also uses rules.py. That module imports only numpy; the others TensorFlow.
"""
