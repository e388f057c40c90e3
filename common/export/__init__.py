"""`python -m BENCHMARK --export=DIR`: the step as StableHLO that any PJRT client runs, see docs/replay.md.

rules.py is read at the other end too (bench/replay.py) and imports nothing but numpy; the rest imports TensorFlow.
"""
