"""The flags that forecast and rent share, and those of simulated faults."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UserError

if TYPE_CHECKING:
    from systems.forecast.simulate import Faults


def add_prices(group: Any) -> None:
    """Adds the flags of prices."""
    group.add_argument("--price", type=float, metavar="USD", help="an accelerator's, per hour")
    group.add_argument("--prices", type=Path, metavar="FILE", help="a table in place of the sellers'")


def add_faults(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of simulated faults."""
    faults = parser.add_argument_group("simulated faults (any of these simulates the run, step by step)")
    faults.add_argument("--simulate", action="store_true", help="simulate the run, even without faults")
    faults.add_argument(
        "--jitter", type=float, metavar="SIGMA", help="of a worker's step, relative, e.g. 0.02"
    )
    faults.add_argument("--stragglers", type=float, metavar="PART", help="part of workers that are slow")
    faults.add_argument("--slowdown", type=float, metavar="FACTOR", help="of a straggler (default 1.3)")
    faults.add_argument(
        "--mtbf", type=float, metavar="HOURS", help="mean time between failures of one worker"
    )
    faults.add_argument("--restart", type=float, metavar="S", help="from a failure to the next step (120)")
    faults.add_argument("--checkpoint", type=float, metavar="S", help="between checkpoints (0: the best)")
    faults.add_argument("--save", type=float, metavar="S", help="seconds that a checkpoint takes (5)")
    faults.add_argument(
        "--group", type=int, metavar="N", help="workers that wait for each other within a step"
    )
    faults.add_argument("--seed", type=int, default=0, help="of the simulation")


def faults(options: argparse.Namespace) -> Faults | None:
    """The faults of the flags; None if there are none.

    Raises:
      UserError: a flag makes no sense.
    """
    names = ("jitter", "stragglers", "slowdown", "mtbf", "restart", "checkpoint", "save", "group")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.seed < 0:
        raise UserError(f"--seed={options.seed}: must not be negative")
    if not given and not options.simulate:
        return None
    from systems.forecast.simulate import Faults

    return Faults(**given)
