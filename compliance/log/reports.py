"""Builds the findings about one log: what was expected, what was found, and which sentence of texts.json says it."""

from collections.abc import Collection, Mapping

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import as_fraction, nearest
from compliance.log import rules
from compliance.log.logs import BadLine, Record, text_of
from compliance.log.whole_run import Target


class Reports:
    """Builds findings about one log.

    Args:
      path: the log's name in the findings.
    """

    def __init__(self, ruleset: str, path: str):
        self._ruleset, self._path = ruleset, path

    def make(
        self, rule: str, severity: str, record: Record | None, expected: str, actual: str, **names: object
    ) -> Finding:
        """A finding about a record, or about the whole log if `record` is None."""
        line, text = (record.line, record.text) if record is not None else (0, "")
        return finding(rule, severity, self._path, expected, actual, line=line, text=text, **names)

    # ------------------------------------------------------------------------------------------ one line

    def bad_line(self, bad: BadLine) -> Finding:
        """A line that has the token but is not, or not entirely, a record."""
        severity = bad.severity
        if bad.rule == "line-field" and self._ruleset == "0.6.0" and bad.key:
            has_rules = any(bad.key in rules.compiled("0.6.0", name) for name in rules.names("0.6.0"))
            severity = severity if has_rules else ADVICE  # if no rule needs this key, nothing is lost
        names = {"line": bad.line, "text": bad.text, "wording": bad.wording, **bad.names}
        return finding(bad.rule, severity, self._path, bad.expected, bad.actual, **names)

    def repeated(self, record: Record, first: object) -> Finding:
        """A second record of a key that must occur once; `first` is the value of the first record."""
        if first is record.value or first == record.value:
            severity, wording, actual = ADVICE, "occurs.again", "a repeat"
        else:
            severity, wording = ERROR, "occurs.differs"
            actual = f"first {text_of(first)}, then {text_of(record.value)}"
        names = {"wording": wording, "key": record.key}
        return self.make(f"{record.key}.occurs", severity, record, "exactly one", actual, **names)

    def broken(
        self, rule: rules.KeyRule, aspect: str, record: Record, expected: str, say: str = "",
        times: Mapping[str, float] = {},  # noqa: B006 (never changed)
    ) -> Finding:  # fmt: skip
        """A record that fails one check of its key's rule; `times`: the first times of init_start and run_start."""
        names: dict[str, object] = {"wording": aspect}
        actual = text_of(record.value)
        if aspect == "value":
            names = _meant(rule, record.value)
        elif aspect == "metadata":
            actual = text_of(record.metadata) if record.metadata else "no metadata"
        elif aspect == "order":
            actual = f"line {record.line}, {text_of(record.metadata)}"
            names = {"wording": "order.state" if say else "order", "say": say}
            if say and (began := times.get(rule.spec.get("within", {}).get("key"))):
                actual = f"{(record.time_ms - began) / 60_000:.1f} minutes"
                names["wording"] = "order.init"
        return self.make(f"{rule.key}.{aspect}", ERROR, record, expected, actual, key=rule.key, **names)

    # ------------------------------------------------------------------------------------- evaluations

    def odd_accuracy(self, record: Record, target: Target) -> Finding | None:
        """A remark about an accuracy that misses the target because it is not a number or is a percentage."""
        if record.value != record.value:
            return self.make("eval_accuracy.nan", ADVICE, record, "a number", "NaN")
        fraction = as_fraction(record.value, target.holds)
        if fraction is None:
            return None
        names, actual = {"fraction": fraction, "value": record.value}, text_of(record.value)
        return self.make("eval_accuracy.scale", ADVICE, record, target.expected, actual, **names)

    def missed(self, best: Record | None, target: Target) -> Finding:
        """No evaluation met the target; `best` is the nearest."""
        names: dict[str, object] = {}
        fraction = as_fraction(best.value, target.holds) if best is not None else None
        if fraction is not None:
            names = {"wording": "eval_accuracy.target.scale", "fraction": fraction, "value": best.value}
        actual = text_of(best.value) if best is not None else "no comparable accuracy"
        return self.make("eval_accuracy.target", ERROR, best, target.expected, actual, **names)

    # ------------------------------------------------------------------------------------- the whole log

    def few(self, key: str, rule: rules.KeyRule, count: int, unknown: Collection[str]) -> Finding:
        """A key that occurs less often than its rule requires."""
        if count or rule.times > 1:
            names = {"wording": "occurs.few", "key": key, "times": rule.times}
            return self.make(f"{key}.occurs", ERROR, None, f"at least {rule.times}", str(count), **names)
        return self.absent(key, "exactly one" if rule.once else "at least one", unknown)

    def absent(self, key: str, expected: str, unknown: Collection[str]) -> Finding:
        """A key that never occurs; `unknown` are the log's keys that have no rules."""
        near = nearest(key, unknown) if unknown else None
        names = {"wording": "occurs.misspelled" if near else "occurs.missing", "key": key, "near": near}
        return self.make(f"{key.split(' ')[0]}.occurs", ERROR, None, expected, "none", **names)

    def uncollected(self, key: str, entries: list, expected_entries: list[str]) -> Finding:
        """Records that together must have each of `expected_entries` once, but have `entries`."""
        missing = [name for name in expected_entries if name not in entries]
        other = [name for name in entries if name not in expected_entries] or "an entry twice"
        some = f"; missing {', '.join(missing[:3])}" if missing else ""
        expected = f"each tensor once, {len(expected_entries)} in all{some}"
        few = missing and len(entries) < len(expected_entries)
        actual = f"{len(entries)}" if few else f"not in the list: {text_of(other)}"
        return self.make(f"{key}.metadata", ERROR, None, expected, actual, key=key, wording="metadata")

    def empty(self, foreign: int, unread: int) -> Finding:
        """A log without a record. `foreign` counts lines in another round's format, `unread` counts broken lines."""
        token = ":::MLL" if self._ruleset == "0.6.0" else ":::MLLOG"
        if foreign:
            other = "0.7.0" if self._ruleset == "0.6.0" else "0.6.0"
            names = {"wording": "no-records.other", "other": other}
            actual = f"{foreign} records in the form of another round"
            return self.make("no-records", ERROR, None, f"lines with {token}", actual, **names)
        if unread:
            names = {"what": "the rules of the benchmark", "fix": "fix the lines; then check the log again"}
            actual = f"{unread} lines that could not be read, and none that could"
            return self.make("not-checked", ERROR, None, "records", actual, **names)
        return self.make("no-records", ERROR, None, f"lines with {token}", "no record")


def _meant(rule: rules.KeyRule, value: object) -> dict[str, object]:
    """Returns the wording for a value that the key's predicate rejects."""
    if rule.allowed and (near := nearest(value, map(str, rule.allowed))):
        return {"wording": "value.near", "near": near}
    if rule.key != "submission_benchmark":
        return {"wording": "value"}
    if isinstance(value, str) and (others := rules.rulesets_with(value)):
        rounds = " to ".join(dict.fromkeys((others[0], others[-1])))
        return {"wording": "value.later-benchmark", "round": rounds}
    return {"wording": "value.unknown-benchmark"}
