"""One command that measures a card: `python -m lab.bench.gpu EXPORTS`; docs/gpu.md says how to use it.

- __main__.py: the command line, and the order of the work.
- plan.py: the rows, the most important first, with time limits.
- report.py: the results file, written after every row, and the printed table.
- child.py: runs measurements as processes, several at a time, each with a timeout.
- networks.py, peers.py: the measurements in such a process: the card and our exports, PyTorch and flax networks.
- training.py: whole runs, if TensorFlow is installed.
- prepare.py, tensorflow_parts.sh: pack the exports and TensorFlow into files for a machine without a network.
"""
