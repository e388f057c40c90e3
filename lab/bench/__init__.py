"""Measurements of this project, most next to a named peer: `python -m lab.bench.NAME`, from the project's root.

- lab/bench/NAME.py: one script per benchmark; writes lab/bench/results/NAME.json. `make bench` runs all of them.
- harness/: code that scripts share: contenders in alternating rounds, peers' interpreters, flags, result files; costs
  from a compiled step, speeds and errors of a replayed export.
- contenders/: the timed networks, ours and the peers', by framework; each runs in its own process.
"""

import common  # noqa: F401, sets variables that TensorFlow reads at its import, as in a run
