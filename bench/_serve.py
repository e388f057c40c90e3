"""The contender's end of _rounds.py's protocol; imports neither TensorFlow nor PyTorch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable


def serve(run: Callable[[int], object], **about: object) -> None:
    """Says `about`, then answers each line "N" of standard input with the seconds that `run(N)` took, as JSON."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        run(int(line))
        print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)
