"""The written rule of pruning, beside the stock checker's.

training_rules.adoc, "Reference Convergence Points": "we prune ALL RCP points that have slower convergence than the
linear interpolation at the same batch size of any two surrounding points". The points that remain are the lower convex
hull. The stock checker compares a point only with its two neighbors, once, from small to large, so some points above
the hull stay (mlcommons/logging issue 368). Both begin at the batch size of the fastest point.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from compliance.submission import rcp
from compliance.submission.rcp import Convergence, Point


@cache
def written(benchmark: str, ruleset: str) -> tuple[Point, ...]:
    """Returns the points that the written rule keeps, by batch size; () if the round has none."""
    every = rcp.points(benchmark, ruleset)
    if not every:
        return ()
    fastest = min(every, key=lambda point: point.mean)
    return lower_hull([point for point in every if point.batch >= fastest.batch])


def lower_hull(points: Sequence[Point]) -> tuple[Point, ...]:
    """Returns the points on or below every line between two others; `points` are sorted by batch size.

    Andrew's monotone chain.
    """
    hull: list[Point] = []
    for point in points:
        while len(hull) > 1 and _above(hull[-1], hull[-2], point):
            hull.pop()
        hull.append(point)
    return tuple(hull)


def _above(point: Point, low: Point, high: Point) -> bool:
    part = (point.batch - low.batch) / (high.batch - low.batch)
    return point.mean > low.mean + (high.mean - low.mean) * part


def pruned_by_rule_alone(benchmark: str, ruleset: str) -> list[Point]:
    """Returns the points that the written rule prunes and the stock checker keeps."""
    kept = {point.batch for point in written(benchmark, ruleset)}
    return [point for point in rcp.pruned(benchmark, ruleset) if point.batch not in kept]


class Both(NamedTuple):
    """A folder's convergence test with the stock checker's points and with the written rule's."""

    stock: Convergence
    rule: Convergence

    @property
    def note(self) -> str:
        """Returns a sentence about the difference; "" if verdict and factor are equal."""
        stock, rule = self.stock, self.rule
        if stock.verdict == rule.verdict and factor(stock) == factor(rule):
            return ""
        levels = ""
        if stock.reference is not None and rule.reference is not None:
            levels = f" (reference {stock.reference:,.6g} and {rule.reference:,.6g})"
        return (
            f"the stock checker says {stock.verdict}, factor {factor(stock):.4f}; the written rule's pruning gives "
            f"{rule.verdict}, factor {factor(rule):.4f}{levels}"
        )


def factor(judged: Convergence) -> float:
    return judged.scaling if judged.verdict == rcp.PASS else 1.0


def both(benchmark: str, ruleset: str, judged: Convergence, to_converge: Sequence[float | None]) -> Both:
    """Repeats a convergence test with the written rule's points; `judged` is the stock checker's result."""
    if judged.mean is None or judged.batch is None or not pruned_by_rule_alone(benchmark, ruleset):
        return Both(judged, judged)
    kept = written(benchmark, ruleset)
    return Both(judged, rcp.judge(benchmark, ruleset, judged.batch, to_converge, kept))
