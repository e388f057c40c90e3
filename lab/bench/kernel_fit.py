"""Fits the kernel's numbers to scores: the marginal likelihood of a sample, with a weak prior. For a checkout alone.

The likelihood is that of Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), equations 5.8 and 5.9,
of the numbers' logarithms. The noise's weights are those of the law (Student's t), taken anew between the searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from systems.forecast import law
from systems.forecast.law import Law, Points
from systems.forecast.scores import Score

# The prior of each number: normal in its logarithm, about START, with this deviation. It decides where scores do not.
# START was written down before any fit. The deviation alone was chosen with all rounds in view: with 1, half of later
# scores are within 9.4 %; with START itself, 8.4 %.
_WIDE = 0.3
START = {
    **dict.fromkeys(("many", "maker", "all_many", "all_many2", "chip", "smooth_date", "all_chip"), 0.2),
    **dict.fromkeys(("speed", "ratio", "narrow", "smooth", "smooth_chip", "all_age", "all_maker"), 0.1),
    **dict.fromkeys(("all_chip_date", "all_maker_date", "all_speed", "all_ratio", "many2", "noise"), 0.05),
    **dict.fromkeys(("date", "age", "all_date"), 0.02),
    "l_date": 2.0, "l_many": 1.0, "l_speed": 1.0,
}  # fmt: skip
_SAMPLE, _ROUNDS, _STEPS = 500, 2, 12
_STEP = 1e-4  # Of the finite differences of the three lengths.


def fit(rows: Sequence[Score], start: Mapping[str, float] = START) -> dict[str, float]:
    """The kernel's numbers for scores, from those of `start` on.

    A sample of at most _SAMPLE scores, the same in every call, stands for all of them.
    """
    from scipy.optimize import minimize

    sample = sorted(np.random.default_rng(0).permutation(len(rows))[:_SAMPLE])
    sample_rows, names, numbers = [rows[i] for i in sample], list(START), dict(start)
    at = law.points(sample_rows)
    goal = law.goal(sample_rows, at)
    for _ in range(_ROUNDS):
        weights = Law.fit(sample_rows, numbers).weights

        def cost(logs: np.ndarray, weights: np.ndarray = weights) -> tuple[float, np.ndarray]:
            value, gradient = likelihood(at, goal, weights, dict(zip(names, np.exp(logs))))
            pull = (logs - np.log([START[name] for name in names])) / _WIDE**2
            return pull @ pull * _WIDE**2 / 2 - value, pull - np.array([gradient[name] for name in names])

        begin = np.log([numbers[name] for name in names])
        optimum = minimize(cost, begin, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS})
        numbers = dict(zip(names, map(float, np.exp(optimum.x))))
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def likelihood(
    at: Points, goal: np.ndarray, weights: np.ndarray, numbers: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """(ln of the marginal likelihood of the law's left sides [rows], its gradient by the numbers' logarithms)."""
    total = np.diag(numbers["noise"] ** 2 / weights)
    for name, matrix in law.parts(at, at, numbers):
        total += (numbers[name] ** 2 if name else 1.0) * matrix
    inverse = np.linalg.inv(total)
    centered = goal - goal.mean()
    pull = inverse @ centered
    value = -0.5 * (centered @ pull + np.linalg.slogdet(total)[1])
    slope = np.outer(pull, pull) - inverse

    def along(matrix: np.ndarray) -> float:
        """The value's change with a change of the covariance: half the trace of slope and matrix."""
        return 0.5 * float(np.einsum("ij,ij->", slope, matrix))

    gradient = {name: 2 * numbers[name] ** 2 * along(m) for name, m in law.parts(at, at, numbers) if name}
    gradient["noise"] = 2 * along(np.diag(numbers["noise"] ** 2 / weights))
    for name in ("l_date", "l_many", "l_speed"):
        moved = dict(numbers) | {name: numbers[name] * (1 + _STEP)}
        changed = law.kernel(at, at, moved) - law.kernel(at, at, numbers)
        gradient[name] = along(changed) / _STEP
    return float(value), gradient
