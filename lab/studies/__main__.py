"""Runs a study and writes its table and pictures to lab/studies/NAME/: python -m lab.studies NAME."""

import argparse
import functools
import sys
from collections.abc import Sequence

from common.errors import Parser, answering
from lab.studies import legw, llama_ptb
from lab.studies.legw_values import MNIST, PTB

LEGW = (MNIST, PTB)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of every study."""
    whole = Parser(prog="timetotrain study", description=__doc__)
    commands = whole.add_subparsers(required=True, metavar="NAME")
    for study in LEGW:
        batches = f"batches {study.batch} to {study.batch * study.largest:,}"
        command = commands.add_parser(
            study.name, help=f"LEGW on {study.benchmark}: {batches}, its competitors"
        )
        legw.add_arguments(command)
        command.set_defaults(study=functools.partial(legw.run, study))
    command = commands.add_parser(
        llama_ptb.NAME, help="the Transformer of llama31_8b beside the LSTM of ptb, for equal minutes"
    )
    llama_ptb.add_arguments(command)
    command.set_defaults(study=llama_ptb.run)
    return whole


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, a failed run's status, 2 for a bad command or missing data, 130 for Ctrl-C."""
    args = parser().parse_args(argv)
    return args.study(args)


if __name__ == "__main__":
    sys.exit(main())
