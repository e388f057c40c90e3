"""Names a benchmark's quality metric and formats its values for people. TensorFlow-free.

The rules require that the log calls every metric eval_accuracy. People read "perplexity 116.5" or "top-1 accuracy
75.9 %".
"""

import dataclasses
import math
from collections.abc import Mapping

Value = float | Mapping[str, float]
UNITS = ("", "%", "points")


@dataclasses.dataclass(frozen=True)
class Measure:
    """A quality metric's name, unit and direction.

    Attributes:
      name: its name for people.
      unit: how to show a value: "" as it is; "%" a fraction as a percentage; "points" a fraction on a scale of 0 to 100
        (values above 1 are points already, as in round v0.6).
      lower_is_better: whether the lower of two values is better.
      names: {key in the log: name}, if the logged value has several parts.
    """

    name: str
    unit: str = ""
    lower_is_better: bool = False
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is as good as `target`."""
        return value <= target if self.lower_is_better else value >= target

    def score(self, value: Value) -> float:
        """Returns the mean of the parts, signed so that larger is better; -inf if a part is not finite."""
        values = list(parts(value).values())
        if not values or not all(map(math.isfinite, values)):
            return -math.inf
        mean = sum(values) / len(values)
        return -mean if self.lower_is_better else mean

    def by_name(self, value: Value) -> dict[str, float]:
        """Returns {name: value} of the parts, with the names for people."""
        return {self.names.get(key, key) if key else self.name: part for key, part in parts(value).items()}

    def number(self, value: float) -> str:
        """Formats one number: "75.9 %", "25.1", "0.231"."""
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        if self.unit == "points":
            return f"{value if abs(value) > 1 else 100 * value:.1f}"
        return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3f}"

    def text(self, value: Value) -> str:
        """Formats a value with its name: "top-1 accuracy 75.9 %", "box mAP 0.377, mask mAP 0.339"."""
        return ", ".join(f"{name} {self.number(part)}" for name, part in self.by_name(value).items())

    def target(self, value: Value) -> str:
        """Formats a target; a single part goes without its name: "75.9 %", "box mAP 0.377, mask mAP 0.339"."""
        return self.text(value) if isinstance(value, Mapping) else self.number(value)


def parts(value: Value) -> Mapping[str, float]:
    """Returns the parts of a value; {"": value} if it is one number."""
    return value if isinstance(value, Mapping) else {"": value}
