"""Measurements of this project, most next to a named peer: `python -m lab.bench.NAME`, from the project's root.

- lab/bench/NAME.py: one script per benchmark; writes lab/bench/results/NAME.json. `make bench` runs all of them.
- harness/: code that scripts share: contenders in alternating rounds, peers' interpreters, flags, result files.
- contenders/: the timed networks, ours and the peers', by framework; each runs in its own process.
- programs/: data from compiled programs: costs from a step's HLO, speeds and errors of a replayed export.
"""

import common  # noqa: F401, sets variables that TensorFlow reads at its import, as in a run
