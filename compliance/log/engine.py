"""Checks a log record by record, so that a file, a pipe and a run in progress give the same findings.

The semantics are those of mlperf_logging's compliance checker for every ruleset (each
deliberate difference is in docs/compliance-differences.md): each key's rule sees its records in order; a
benchmark's rules see the whole log, also what came before the line that named the benchmark; only the first
record of a `submission_*` key is checked and selects; identical repeats of a key that must occur once are
remarks, different ones errors.
"""

from __future__ import annotations

import contextlib
from array import array

from compliance.findings import ADVICE, ERROR, Finding, finding
from compliance.hints import nearest, rescaled
from compliance.log import rules
from compliance.log.formulas import FAILURES, Formula
from compliance.log.logs import BadLine, Record, shown
from compliance.log.story import Story, Target

_NONE: list[Finding] = []  # shared by the many records without a finding; never changed
# Records held until the log names its benchmark. Real headers have under a hundred lines.
_MAX_HELD = 50_000
_MAX_UNKNOWN_KEYS = 200


class StreamChecker:
    """Checks one log, record by record.

    Args:
      ruleset: one of `rules.RULESETS`.
      benchmark, division: what the log must declare; None: accept what it declares.
      path: named in the findings.

    `feed` returns the findings about a record: at once when the benchmark and division are known, otherwise
    with the record that names them. `finish` returns the findings that need the whole log.
    """

    def __init__(
        self, ruleset: str, benchmark: str | None = None, division: str | None = None, path: str = ""
    ):
        self.ruleset, self.path = ruleset, path
        self.benchmark, self.division = benchmark, division
        self.platform: object = None
        self.info: dict = {}
        self.target: Target | None = None
        self.records = 0
        self.story = Story(self._make)
        self._asked = {"submission_benchmark": benchmark, "submission_division": division}
        self._common = rules.load(ruleset, "common")
        self._rules = dict(rules.compiled(ruleset, "common"))
        self._state = dict(self._common.get("state", {}))
        self._seen: dict[str, int] = {}
        self._values: dict[str, object] = {}  # the first value of each key
        self._latest = float("-inf")
        self._unknown: set[str] = set()
        self._foreign = 0
        self._unread = 0
        self._held: list[Record] | None = []  # None once the benchmark's rules are in force
        self._late: dict[str, list[Record]] = {}  # records of keys whose rules depend on another key's value
        self._late_keys: dict[str, str] = {}
        self._collected: dict[str, list] = {}  # of each key that collects: the metadata entries so far
        self._totals: dict[object, Record] = {}  # the records that `aggregates` of the rule file makes
        self._target_key = "eval_accuracy"
        self._best: Record | None = None
        self._disorder: Finding | None = None
        self._disordered = array("Q")
        self._checked = False
        self._chosen: dict[str, object] = {}
        if benchmark is not None and (division is not None or not rules.has_divisions(ruleset)):
            self._held = None
            self._begin()

    # ------------------------------------------------------------------------------------------ feeding

    def feed(self, record: Record | BadLine) -> list[Finding]:
        """Returns the findings about this record, and about held ones that it releases."""
        if record.__class__ is BadLine:
            return self._bad_line(record)
        self.records += 1
        if record.time_ms < self._latest:
            # Two in three real logs have such lines, some nearly nothing else: one finding, made at the end.
            self._disordered.append(record.line)
            if self._disorder is None:
                late = f"{self._latest - record.time_ms:.0f} ms earlier"
                wanted = "times that do not decrease"
                self._disorder = self._make("line.order", ADVICE, record, wanted, late)
        else:
            self._latest = record.time_ms
        if self._held is None:
            return self._apply(record)
        self._held.append(record)
        return self._select(record)

    def _bad_line(self, bad: BadLine) -> list[Finding]:
        severity = bad.severity
        if bad.rule == "line-other-form":
            self._foreign += 1
        elif bad.severity == ERROR:
            self._unread += 1
        if bad.rule == "line-field" and self.ruleset == "0.6.0" and bad.key and not self._knows(bad.key):
            severity = ADVICE  # no rule asks for this key, so nothing was lost
        names = {"line": bad.line, "text": bad.text, "wording": bad.wording, **bad.names}
        return [finding(bad.rule, severity, self.path, bad.expected, bad.found, **names)]

    def _knows(self, key: str) -> bool:
        return any(key in rules.compiled(self.ruleset, name) for name in rules.names(self.ruleset))

    def _select(self, record: Record) -> list[Finding]:
        """Loads the benchmark's rules once the log has named what selects them, and replays the held records."""
        key = record.key
        if key in self._asked and key not in self._chosen:
            self._chosen[key] = record.value
        ready = len(self._chosen) == 2 or (
            "submission_benchmark" in self._chosen and not rules.has_divisions(self.ruleset)
        )
        if ready or len(self._held) > _MAX_HELD:
            return self._replay()
        return _NONE

    def _replay(self) -> list[Finding]:
        held, self._held = self._held, None
        found = self._begin()
        for record in held:
            found.extend(self._apply(record))
        return found

    def _begin(self) -> list[Finding]:
        """Loads the rules of the requested benchmark, or of the one that the log names or most likely means."""
        division = self._resolve("submission_division", rules.DIVISIONS)
        benchmark = self._resolve("submission_benchmark", rules.benchmarks(self.ruleset, division))
        if f"{division}/common" in rules.names(self.ruleset):
            self._add(f"{division}/common")
        if benchmark is None or (division is None and rules.has_divisions(self.ruleset)):
            return []
        self.benchmark, self.division = benchmark, division
        name = rules.benchmark_file(self.ruleset, division, benchmark)
        self._checked = True
        if name not in rules.names(self.ruleset):
            wanted = "a benchmark with rules in this division"
            return [self._make("benchmark.no-rules", ERROR, None, wanted, name, ruleset=self.ruleset)]
        self._add(name)
        if benchmark in self._common.get("own_benchmarks", ()):
            wanted = "an MLPerf benchmark in a submission"
            return [self._make("benchmark.own", ADVICE, None, wanted, benchmark)]
        return []

    def _resolve(self, key: str, known) -> str | None:
        asked = self._asked[key]
        return asked if asked is not None else nearest(self._chosen.get(key), known)

    def _add(self, name: str) -> None:
        info = rules.load(self.ruleset, name)
        self.info = {**self.info, **{word: value for word, value in info.items() if word != "keys"}}
        added = rules.compiled(self.ruleset, name)
        for key in info.get("removes", ()):
            self._rules.pop(key, None)
        self._rules.update(added)
        self._state.update(info.get("state", {}))
        for key, rule in added.items():
            if rule.target is not None:
                self.target, self._target_key = Target(rule.target), key
            if rule.selects is not None:
                for choice in rule.allowed:
                    names = rules.compiled(self.ruleset, rule.selects.format(choice))
                    self._late_keys.update(dict.fromkeys(names, key))
        if "goal" in info:
            self.target = Target(info["goal"], lenient=True)

    # ------------------------------------------------------------------------------------- one record

    def _apply(self, record: Record) -> list[Finding]:
        key = record.key
        handler = self.story.handlers.get(key)
        rule = self._rules.get(key)
        how = self.info.get("aggregates")
        if how is not None and key == how["key"] and not self._aggregate(how, record):
            return [self._unjoined(how, record)]
        if rule is None:
            if handler is not None:
                remark = handler(record)
                return [remark] if remark else _NONE
            if key in self._late_keys:
                self._late.setdefault(self._late_keys[key], []).append(record)
                if len(self._late[self._late_keys[key]]) > _MAX_HELD:
                    del self._late_keys[key]
            elif len(self._unknown) < _MAX_UNKNOWN_KEYS:
                self._unknown.add(key[:80])
            return _NONE
        found: list[Finding] = []
        before = self._seen.get(key, 0)
        if not before:
            self._values[key] = record.value
        elif rule.once:
            found.append(self._repeated(record, key))
        if not (before and "submission_" in key):
            state, times = self._state, self.story.times
            for aspect, test, expected, say in rule.checks:
                if not test(record, self._seen, state, times):
                    found.append(self._broken(rule, aspect, record, expected, say))
            if key in self._asked and not found:
                found.extend(self._contradicts(record))
            elif key == "submission_platform":
                self.platform = record.value
            found.extend(self._remember(rule, record))
        if rule.sets:
            self._set(rule.sets, record)
        self._seen[key] = before + 1
        if handler is not None:
            handler(record)
        if key == self._target_key:
            found.extend(self._accuracy(record))
        if rule.selects is not None and not before:
            found.extend(self._bring_in(rule, record))
        return found

    def _set(self, sets: tuple, record: Record) -> None:
        for name, value in sets:
            if isinstance(value, dict):
                if value["metadata"] not in record.metadata:
                    return  # as in the stock checker, whose statement fails here and leaves the rest undone
                value = record.metadata[value["metadata"]]
            self._state[name] = value

    def _remember(self, rule: rules.KeyRule, record: Record) -> list[Finding]:
        """Keeps what later formulas and the end of the log need of a record."""
        if rule.collects is not None:
            kept = self._collected.setdefault(rule.key, [])
            if len(kept) <= len(rule.collects["all_of"]):  # one more than allowed is enough to know
                kept.append(record.metadata.get(rule.collects["metadata"]))
        if rule.saves_time is not None:
            self._save_time(*rule.saves_time, record)
        for name, formula in rule.remembers:
            try:
                self._state[name] = formula(record.value, record.metadata, self._state)
            except FAILURES:
                return [self._broken(rule, "value", record, f"a number that gives {name}", "")]
        return _NONE

    def _save_time(self, name: str, by: Formula, record: Record) -> None:
        """Keeps the record's time, in seconds, under what `by` gives; the record's own check says if that fails."""
        times = self._state.setdefault(name, {})
        with contextlib.suppress(*FAILURES):
            if len(times) < _MAX_HELD:
                times[by(record.value, record.metadata, self._state)] = record.time_ms / 1000

    def _aggregate(self, how: dict, record: Record) -> bool:
        """Joins the metrics of one evaluation, each in a record of its own; false when it is not named."""
        if how["metadata"] not in record.metadata:
            return True
        metric, by = record.metadata[how["metadata"]], record.metadata.get(how["by"])
        if not isinstance(metric, str) or not isinstance(by, (int, float, str)):
            return False
        total = self._totals.get(by)
        if total is None:
            if len(self._totals) >= _MAX_HELD:
                return True
            total = record._replace(key=how["into"], value={how["by"]: by}, metadata={})
        total.value[metric[:80]] = record.value
        self._totals[by] = total._replace(time_ms=max(total.time_ms, record.time_ms))
        return True

    def _unjoined(self, how: dict, record: Record) -> Finding:
        wanted, found = f"metadata {how['metadata']} and {how['by']}", shown(record.metadata)
        return self._make(
            f"{record.key}.metadata", ERROR, record, wanted, found, key=record.key, wording="metadata"
        )

    def _repeated(self, record: Record, key: str) -> Finding:
        first = self._values[key]
        if first is record.value or first == record.value:
            severity, wording, found = ADVICE, "occurs.again", "a repeat"
        else:
            severity, wording, found = (
                ERROR,
                "occurs.differs",
                f"first {shown(first)}, then {shown(record.value)}",
            )
        return self._make(f"{key}.occurs", severity, record, "exactly one", found, wording=wording, key=key)

    def _broken(self, rule: rules.KeyRule, aspect: str, record: Record, expected: str, say: str) -> Finding:
        names: dict[str, object] = {"wording": aspect}
        found = shown(record.value)
        if aspect == "value":
            names = self._meant(rule, record.value)
        elif aspect == "metadata":
            found = shown(record.metadata) if record.metadata else "no metadata"
        elif aspect == "order":
            found = f"line {record.line}, {shown(record.metadata)}"
            names = {"wording": "order.state" if say else "order", "say": say}
        return self._make(f"{rule.key}.{aspect}", ERROR, record, expected, found, key=rule.key, **names)

    @staticmethod
    def _meant(rule: rules.KeyRule, value: object) -> dict[str, object]:
        """The wording for a value that the key's predicate does not admit."""
        if rule.allowed and (near := nearest(value, map(str, rule.allowed))):
            return {"wording": "value.near", "near": near}
        if rule.key != "submission_benchmark":
            return {"wording": "value"}
        if isinstance(value, str) and value in rules.HPC_BENCHMARKS:
            return {"wording": "value.hpc"}
        if isinstance(value, str) and (others := rules.rulesets_with(value)):
            return {
                "wording": "value.later-benchmark",
                "round": " to ".join(dict.fromkeys((others[0], others[-1]))),
            }
        return {"wording": "value.unknown-benchmark"}

    @property
    def declared(self) -> dict[str, object]:
        """The first value of each logged key, the benchmark and division among them."""
        return self._values

    def _contradicts(self, record: Record) -> list[Finding]:
        asked = self._asked[record.key]
        if asked is None or record.value == asked:
            return _NONE
        return [self._make(f"{record.key}.asked", ERROR, record, asked, shown(record.value), wording="asked")]

    def _accuracy(self, record: Record) -> list[Finding]:
        if self.target is None:
            self.story.judged = False
            return _NONE
        met = self.target.judge(record.value, self._values.get(self.target.by))
        self.story.accuracy(record, bool(met))
        if "goal" in self.info:
            if met is None:
                self.story.judged = False
            return _NONE
        if met is None:
            wanted = self.target.expected + (f", after {self.target.by}" if self.target.by else "")
            names = {"wording": "eval_accuracy.target.type"}
            return [self._make("eval_accuracy.target", ERROR, record, wanted, shown(record.value), **names)]
        if met:
            return _NONE
        if self._best is None or _above(record.value, self._best.value):
            self._best = record
        if record.value != record.value:
            return [self._make("eval_accuracy.nan", ADVICE, record, "a number", "NaN")]
        fraction = rescaled(record.value, self.target.holds)
        if fraction is None:
            return _NONE
        names = {"fraction": fraction, "value": record.value}
        return [
            self._make(
                "eval_accuracy.scale", ADVICE, record, self.target.expected, shown(record.value), **names
            )
        ]

    def _bring_in(self, rule: rules.KeyRule, record: Record) -> list[Finding]:
        """Adds the rules that this key's value selects and applies them to the records before it."""
        choice = nearest(record.value, rule.allowed)
        if choice is None:
            return _NONE
        self._late_keys = {key: by for key, by in self._late_keys.items() if by != rule.key}
        self._add(rule.selects.format(choice))
        found: list[Finding] = []
        for held in self._late.pop(rule.key, ()):
            found.extend(self._apply(held))
        return found

    # -------------------------------------------------------------------------------------- the end

    def finish(self) -> list[Finding]:
        """The findings about the whole log."""
        if not self.records:
            return [self._empty()]
        found = self._replay() if self._held is not None else []
        for total in self._totals.values():
            found += self._apply(total)
        found += self._missing()
        if not self._checked and not any(one.rule.startswith("submission_benchmark.") for one in found):
            found.append(self._unselected())
        required = self.target is not None and "goal" not in self.info and self._target_key in self._seen
        if required and self.story.best is None:
            found.append(self._missed())
        found += self.story.end(self.info, self.target and self.target.spec)
        if self._disorder is not None:
            lines = self._disordered if len(self._disordered) > 1 else ()
            found.append(self._disorder._replace(lines=lines))
        return found

    def _unselected(self) -> Finding:
        wanted = "submission_benchmark and submission_division"
        names = {"what": "the rules of the benchmark", "fix": f"log {wanted} in the header"}
        return self._make("not-checked", ERROR, None, wanted, "no value that selects rules", **names)

    def _empty(self) -> Finding:
        token = ":::MLL" if self.ruleset == "0.6.0" else ":::MLLOG"
        if self._foreign:
            other = "0.7.0" if self.ruleset == "0.6.0" else "0.6.0"
            names = {"wording": "no-records.other", "other": other}
            found = f"{self._foreign} records in the form of another round"
            return self._make("no-records", ERROR, None, f"lines with {token}", found, **names)
        if self._unread:
            names = {"what": "the rules of the benchmark", "fix": "mend the lines; then check the log again"}
            found = f"{self._unread} lines that could not be read, and none that could"
            return self._make("not-checked", ERROR, None, "records", found, **names)
        return self._make("no-records", ERROR, None, f"lines with {token}", "no record")

    def _missing(self) -> list[Finding]:
        found = []
        for key, rule in self._rules.items():
            count = self._seen.get(key, 0)
            if count < rule.times:
                found.append(self._few(key, rule, count))
            for other, value in rule.spec.get("once_if", {}).items():
                wanted = 1 if self._values.get(other) == value else 0
                if count != wanted:
                    names = {"wording": "occurs.with", "key": key, "other": other, "value": value}
                    found.append(self._make(f"{key}.occurs", ERROR, None, str(wanted), str(count), **names))
        for keys in self._common.get("one_of", ()):
            if not any(key in self._seen for key in keys):
                found.append(self._absent(" or ".join(keys), "at least one"))
        for key, kept in self._collected.items():
            wanted = self._rules[key].collects["all_of"]
            if len(kept) != len(wanted) or not all(map(kept.count, wanted)):
                found.append(self._uncollected(key, kept, wanted))
        return found

    def _few(self, key: str, rule: rules.KeyRule, count: int) -> Finding:
        if count or rule.times > 1:
            names = {"wording": "occurs.few", "key": key, "times": rule.times}
            return self._make(f"{key}.occurs", ERROR, None, f"at least {rule.times}", str(count), **names)
        return self._absent(key, "exactly one" if rule.once else "at least one")

    def _uncollected(self, key: str, kept: list, wanted: list[str]) -> Finding:
        missing = [name for name in wanted if name not in kept]
        other = [name for name in kept if name not in wanted] or "an entry twice"
        expected = f"each tensor once, {len(wanted)} in all" + (
            f"; missing {', '.join(missing[:3])}" if missing else ""
        )
        found = f"{len(kept)}" if missing and len(kept) < len(wanted) else f"not in the list: {shown(other)}"
        return self._make(f"{key}.metadata", ERROR, None, expected, found, key=key, wording="metadata")

    def _absent(self, key: str, wanted: str) -> Finding:
        near = nearest(key, self._unknown) if self._unknown else None
        names = {"wording": "occurs.misspelt" if near else "occurs.missing", "key": key, "near": near}
        return self._make(f"{key.split(' ')[0]}.occurs", ERROR, None, wanted, "none", **names)

    def _missed(self) -> Finding:
        best, names = self._best, {}
        fraction = rescaled(best.value, self.target.holds) if best is not None else None
        if fraction is not None:
            names = {"wording": "eval_accuracy.target.scale", "fraction": fraction, "value": best.value}
        found = shown(best.value) if best is not None else "no comparable accuracy"
        return self._make("eval_accuracy.target", ERROR, best, self.target.expected, found, **names)

    def _make(
        self, rule: str, severity: str, record: Record | None, expected: str, found: str, **names: object
    ) -> Finding:
        line, text = (record.line, record.text) if record is not None else (0, "")
        return finding(rule, severity, self.path, expected, found, line=line, text=text, **names)


def _above(value: object, best: object) -> bool:
    try:
        return value > best
    except TypeError:
        return False
