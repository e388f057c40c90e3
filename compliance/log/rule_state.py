"""Keeps what later rules need of a log's earlier records: a small state, collected entries, joined metrics."""

from __future__ import annotations

import contextlib

from compliance.log.formulas import FAILURES, Formula
from compliance.log.logs import Record
from compliance.log.rules import KeyRule

# Entries kept of a table that a log fills. Real logs have under a hundred.
_MAX_KEPT = 50_000


class Kept:
    """What the records of one log leave behind; bounded, however long the log is.

    `state` is what rules read: the small state of v0.6, and what formulas call `["remembered", name]`.
    """

    def __init__(self, state: dict):
        self.state = dict(state)
        self._collected: dict[str, list] = {}  # of each key that collects: the metadata entries so far
        self._totals: dict[object, Record] = {}  # the records that `aggregates` of a rule file makes

    def set(self, sets: tuple, record: Record) -> None:
        """Changes the state as a key's `sets` says."""
        for name, value in sets:
            if isinstance(value, dict):
                if value["metadata"] not in record.metadata:
                    return  # as in the stock checker, whose statement fails here and leaves the rest undone
                value = record.metadata[value["metadata"]]
            self.state[name] = value

    def remember(self, rule: KeyRule, record: Record) -> str:
        """Keeps what a key's rule remembers; the name of what the record does not give, or ''."""
        if rule.collects is not None:
            entries = self._collected.setdefault(rule.key, [])
            if len(entries) <= len(rule.collects["all_of"]):  # one more than allowed is enough to know
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
        """Keeps the record's time, in seconds, under what `by` gives; the record's own check says if that fails."""
        times = self.state.setdefault(name, {})
        with contextlib.suppress(*FAILURES):
            if len(times) < _MAX_KEPT:
                times[by(record.value, record.metadata, self.state)] = record.time_ms / 1000

    def join(self, how: dict, record: Record) -> bool:
        """Joins the metrics of one evaluation, each in a record of its own; false when it is not named."""
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
        """A record of each evaluation whose metrics were joined."""
        return list(self._totals.values())

    def incomplete(self, keys: dict[str, KeyRule]) -> list[tuple[str, list, list[str]]]:
        """(key, entries, wanted entries) of the keys that did not collect each wanted entry once."""
        found = []
        for key, entries in self._collected.items():
            wanted = keys[key].collects["all_of"]
            if len(entries) != len(wanted) or not all(map(entries.count, wanted)):
                found.append((key, entries, wanted))
        return found
