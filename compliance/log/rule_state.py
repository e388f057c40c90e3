"""Keeps what later rules need from earlier records: a small state, collected entries, joined metrics."""

import contextlib

from compliance.log.formulas import FAILURES, Formula
from compliance.log.logs import Record
from compliance.log.rules import KeyRule

# How many entries of a table are kept. Real logs have under a hundred.
_MAX_KEPT = 50_000


class RuleState:
    """What later rules need from the earlier records of one log. Its size is bounded, however long the log is.

    `state` is what rules read: the small state of v0.6, and the values that formulas read as `["remembered", name]`.
    """

    def __init__(self, state: dict):
        self.state = dict(state)
        self._collected: dict[str, list] = {}  # for each key that collects: its metadata entries so far
        self._totals: dict[object, Record] = {}  # the joined records (`aggregates` in a rule file)

    def set(self, sets: tuple, record: Record) -> None:
        """Updates the state as the key's `sets` prescribes."""
        for name, value in sets:
            if isinstance(value, dict):
                if value["metadata"] not in record.metadata:
                    return  # as in the stock checker: its statement fails here and skips the rest
                value = record.metadata[value["metadata"]]
            self.state[name] = value

    def remember(self, rule: KeyRule, record: Record) -> str:
        """Keeps the values that a key's rule remembers. Returns the name of a value that the record lacks, or ''."""
        if rule.collects is not None:
            entries = self._collected.setdefault(rule.key, [])
            if len(entries) <= len(rule.collects["all_of"]):  # one more than allowed proves an excess
                entries.append(record.metadata.get(rule.collects["metadata"]))
        if rule.saves_time is not None:
            self._save_time(*rule.saves_time, record)
        for name, formula in rule.remembers:
            try:
                self.state[name] = formula(record.value, record.metadata, self.state)
            except FAILURES:
                return name
        return ""

    def _save_time(self, name: str, by: Formula, record: Record) -> None:
        """Keeps the record's time, in seconds, under the name that `by` computes.

        If `by` fails, nothing is kept: the record's own check reports it.
        """
        times = self.state.setdefault(name, {})
        with contextlib.suppress(*FAILURES):
            if len(times) < _MAX_KEPT:
                times[by(record.value, record.metadata, self.state)] = record.time_ms / 1000

    def join(self, how: dict, record: Record) -> bool:
        """Joins the metrics of one evaluation, which come in separate records. False if the evaluation has no name."""
        if how["metadata"] not in record.metadata:
            return True
        metric, by = record.metadata[how["metadata"]], record.metadata.get(how["by"])
        if not isinstance(metric, str) or not isinstance(by, (int, float, str)):
            return False
        total = self._totals.get(by)
        if total is None:
            if len(self._totals) >= _MAX_KEPT:
                return True
            total = record._replace(key=how["into"], value={how["by"]: by}, metadata={})
        total.value[metric[:80]] = record.value
        self._totals[by] = total._replace(time_ms=max(total.time_ms, record.time_ms))
        return True

    def joined(self) -> list[Record]:
        """Returns one record for each evaluation whose metrics were joined."""
        return list(self._totals.values())

    def incomplete(self, keys: dict[str, KeyRule]) -> list[tuple[str, list, list[str]]]:
        """Returns (key, entries, wanted entries) for keys that did not collect each wanted entry exactly once."""
        lacking = []
        for key, entries in self._collected.items():
            all_of = keys[key].collects["all_of"]
            if len(entries) != len(all_of) or not all(map(entries.count, all_of)):
                lacking.append((key, entries, all_of))
        return lacking
