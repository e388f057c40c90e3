"""Runs a study and writes its table and pictures to lab/studies/NAME/: python -m lab.studies NAME."""

import argparse
import sys
from collections.abc import Sequence

from common.errors import Parser, answering
from lab.studies import (
    fine_tuning,
    lars_momentum,
    legw_curvature,
    legw_mnist,
    legw_ptb,
    multi30k,
    nuclei,
    resnet_photos,
    ucf101,
)

STUDIES = {
    "fine-tuning": fine_tuning,
    "lars-momentum": lars_momentum,
    "legw-curvature": legw_curvature,
    "legw-mnist": legw_mnist,
    "legw-ptb": legw_ptb,
    "multi30k": multi30k,
    "nuclei": nuclei,
    "resnet-photos": resnet_photos,
    "ucf101": ucf101,
}


def parser() -> argparse.ArgumentParser:
    """Returns the parser of every study."""
    made = Parser(prog="timetotrain study", description=__doc__)
    commands = made.add_subparsers(dest="study", required=True, metavar="NAME")
    for name, module in STUDIES.items():
        module.add_arguments(commands.add_parser(name, help=module.__doc__.splitlines()[0]))
    return made


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, a failed run's status, 2 for a bad command or missing data, 130 for Ctrl-C."""
    args = parser().parse_args(argv)
    return STUDIES[args.study].run(args)


if __name__ == "__main__":
    sys.exit(main())
