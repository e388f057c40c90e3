"""Prints the mean and standard deviation of a log's last five evaluations, the paper's form of accuracy.

    python -m tsm_kinetics.last_five results/summit-8/tsm_kinetics/result_0.txt

"For the reported results, we calculate the average and standard deviation from the checkpoint of last 5 epochs to
reduce the influence of randomness" (paper 4.1). A run stops at its target, so train with
--config.quality_target=1 --config.division=open. TensorFlow-free.
"""

import json
import pathlib
import statistics
import sys
from collections.abc import Sequence

from common.errors import Parser, UserError, answering

LAST = 5


def accuracies(path: str) -> list[float]:
    """Reads the values of eval_accuracy from a log, in order; skips other lines. Raises UserError if it is damaged."""
    values = []
    try:
        lines = pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot read it: {error.strerror}; name a log") from error
    for number, line in enumerate(lines, 1):
        _, token, text = line.partition(":::MLLOG ")
        try:
            if token and (record := json.loads(text))["key"] == "eval_accuracy":
                values.append(float(record["value"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: line {number}: no record of a log ({error}); is it whole?") from error
    return values


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m tsm_kinetics.last_five`, see --help; returns the exit code."""
    parser = Parser(prog="python -m tsm_kinetics.last_five", description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="+", help="result files")
    for path in parser.parse_args(argv).logs:
        values = accuracies(path)
        if len(values) < LAST:
            raise UserError(f"{path}: {len(values)} evaluations, {LAST} needed; train longer")
        mean, deviation = statistics.mean(values[-LAST:]), statistics.stdev(values[-LAST:])
        print(f"{100 * mean:.2f} +- {100 * deviation:.2f} %  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
