"""Computes the mean and standard deviation of a log's last five evaluations, the paper's form of accuracy.

    python -m tsm_kinetics.last_five results/summit-8/tsm_kinetics/result_0.txt

"For the reported results, we calculate the average and standard deviation from the checkpoint of last 5 epochs to
reduce the influence of randomness" (paper 4.1). A run stops at its target, so use --config.quality_target=1 to train to
the end. TensorFlow-free.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence

from common.errors import UserError

PREFIX = ":::MLLOG "


def accuracies(lines: Iterable[str]) -> list[float]:
    """Reads the values of eval_accuracy, in order; skips other lines.

    Raises UserError if a line with the log's prefix is not JSON.
    """
    values = []
    for number, line in enumerate(lines, 1):
        _, found, text = line.partition(PREFIX)
        if not found:
            continue
        try:
            record = json.loads(text)
            if record["key"] == "eval_accuracy":
                values.append(float(record["value"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"line {number}: no record of a log ({error}); is the file whole?") from error
    return values


def summary(values: Sequence[float], last: int = 5) -> tuple[float, float]:
    """Computes (mean, standard deviation) of the last values; the deviation divides by n - 1.

    Raises UserError if there are fewer than `last` values.
    """
    if len(values) < last:
        raise UserError(f"{len(values)} evaluations, {last} needed; train longer, or give a smaller --last")
    return statistics.mean(values[-last:]), statistics.stdev(values[-last:]) if last > 1 else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m tsm_kinetics.last_five`, see --help; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tsm_kinetics.last_five",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logs", nargs="+", help="result files")
    parser.add_argument("--last", type=int, default=5, help="evaluations")
    arguments = parser.parse_args(argv)
    for path in arguments.logs:
        try:
            with open(path) as file:
                mean, deviation = summary(accuracies(file), max(1, arguments.last))
        except (OSError, UnicodeDecodeError) as error:
            print(f"error: cannot read {path}: {error}; name a log", file=sys.stderr)
            return 2
        except UserError as error:
            print(f"error: {path}: {error}", file=sys.stderr)
            return error.exit_code
        print(f"{100 * mean:.2f} +- {100 * deviation:.2f} %  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
