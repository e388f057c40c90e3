"""Student's t distribution for whole degrees of freedom, without dependencies."""

import math
from functools import cache


def cdf(t: float, df: int) -> float:
    """Returns P(T <= t) for Student's t with `df` >= 1 degrees of freedom.

    Uses the finite sums of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 (odd) and 26.7.4 (even).
    """
    theta = math.atan(t / math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    if df % 2:
        term, total = math.cos(theta), 0.0
        for k in range(1, (df - 1) // 2 + 1):
            total += term
            term *= cos2 * 2 * k / (2 * k + 1)
        inside = 2 / math.pi * (theta + math.sin(theta) * total)
    else:
        term, total = 1.0, 0.0
        for k in range(1, df // 2 + 1):
            total += term
            term *= cos2 * (2 * k - 1) / (2 * k)
        inside = math.sin(theta) * total
    return (1 + inside) / 2


@cache
def quantile(p: float, df: int) -> float:
    """Returns the t with `cdf(t, df) == p`, for 0.5 <= p < 1, by bisection to float precision."""
    low, high = 0.0, 1.0
    while cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2
