"""Measured comparisons of this project with named peers: `python -m lab.bench.NAME`, from the project's root.

- lab/bench/NAME.py: a script each; writes lab/bench/results/NAME.json. `make bench` runs all of them.
- harness/: what scripts share: contenders in alternating rounds, peers' interpreters, flags, result files.
- contenders/: the networks that are timed, ours and the peers', by framework; each runs in a process of its own.
- processes/: other programs that scripts start, and the fault that one of them has injected.
- programs/: what is read from compiled programs: costs from a step's HLO, speeds and errors of a replayed export.
"""

import common  # noqa: F401, sets what TensorFlow reads as it is imported, as in a run
