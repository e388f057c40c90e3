"""One command that measures a card: `python -m lab.bench.gpu EXPORTS`; docs/gpu.md says how to use it.

- __main__.py: the command line, and the order of the work.
- plan.py: the rows, the most important first, and what each may take.
- report.py: the file of results, written after every row; the table that is printed.
- children.py: runs measurements as processes, several at a time, each with a timeout.
- child.py, networks.py, peers.py: what such a process measures: the card, our exports, PyTorch's and flax's networks.
- training.py: whole runs, where TensorFlow is there too.
- flags.py: sets of XLA's flags, and the best one as a file of systems/launch/.
- prepare.py, tensorflow_parts.sh: the exports and TensorFlow as files that a machine without a network can be brought.
"""
