"""Checks a log record by record, so that a file, a pipe and a run in progress give the same findings.

For every ruleset the semantics match mlperf_logging's compliance checker (docs/compliance-differences.md lists each
deliberate difference):

- Each key's rule sees its records in order.
- A benchmark's rules see the whole log, including the lines before the one that names the benchmark.
- Only the first record of a `submission_*` key is checked, and only it selects rules.
- If a key that must occur once repeats, an identical repeat is a remark and a different one an error.
"""

from array import array

from compliance.findings import ADVICE, ERROR, Finding
from compliance.hints import nearest
from compliance.log import rules, written_rules
from compliance.log.logs import BadLine, Record, text_of
from compliance.log.reports import Reports
from compliance.log.rule_state import RuleState
from compliance.log.whole_run import Target, WholeRun

_NONE: list[Finding] = []  # shared by all records without findings; never changed
# How many records are held until the log names its benchmark. Real headers have under a hundred lines.
MAX_HELD = 50_000
_MAX_UNKNOWN_KEYS = 200


class StreamChecker:
    """Checks one log, record by record.

    Args:
      benchmark, division: what the log must declare; None: accept any.
      path: the name for findings.

    `feed` returns the findings about a record. If the benchmark and division are not known yet, these findings come
    with the record that names them. `finish` returns the findings that need the whole log.
    """

    def __init__(
        self, ruleset: str, benchmark: str | None = None, division: str | None = None, path: str = ""
    ):
        self.ruleset, self.path = ruleset, path
        self.benchmark, self.division = benchmark, division
        self.info: dict = {}
        self.target: Target | None = None
        self.records = 0
        self._reports = Reports(ruleset, path)
        self._make = self._reports.make
        self.whole_run = WholeRun(self._make, ruleset)
        self._expected = {"submission_benchmark": benchmark, "submission_division": division}
        self._common = rules.load(ruleset, "common")
        self._rules = dict(rules.compiled(ruleset, "common"))
        self._past = RuleState(self._common.get("state", {}))
        self._state = self._past.state
        self._counts: dict[str, int] = {}
        self._values: dict[str, object] = {}  # the first value of each key
        self._latest = float("-inf")
        self._unknown: set[str] = set()
        self._foreign = 0
        self._unread = 0
        self._waiting: list[Record] | None = []  # None once the benchmark's rules apply
        self._late: dict[str, list[Record]] = {}  # records of keys whose rules depend on another key's value
        self._late_keys: dict[str, str] = {}
        self._target_key = "eval_accuracy"
        self._joins: dict | None = None  # how to join metrics that come in separate records
        self._best: Record | None = None
        self._disorder: Finding | None = None
        self._disordered = array("Q")
        self._checked = False
        self._names: dict[str, object] = {}
        self._written_keys: frozenset[str] = frozenset()
        self._written_records: dict[str, Record] = {}
        if benchmark is not None and (division is not None or not rules.has_divisions(ruleset)):
            self._waiting = None
            self._begin()

    # ------------------------------------------------------------------------------------------ feeding

    def feed(self, record: Record | BadLine) -> list[Finding]:
        """Returns the findings about this record and about any held records that it releases."""
        if record.__class__ is BadLine:
            self._foreign += record.rule == "line-other-form"
            self._unread += record.rule != "line-other-form" and record.severity == ERROR
            return [self._reports.bad_line(record)]
        self.records += 1
        retroactive = record.key == "run_stop" and self.info.get("offline_evaluation")
        if record.time_ms < self._latest and not retroactive:
            # Two in three real logs have such lines, some almost nothing else: `finish` makes one finding of them.
            self._disordered.append(record.line)
            if self._disorder is None:
                early = f"{self._latest - record.time_ms:.0f} ms earlier"
                self._disorder = self._make("line.order", ADVICE, record, "times that do not decrease", early)
        else:
            self._latest = max(self._latest, record.time_ms)
        if self._waiting is None:
            return self._apply(record)
        self._waiting.append(record)
        return self._select(record)

    def _select(self, record: Record) -> list[Finding]:
        """Loads the benchmark's rules once the log has named benchmark and division; replays the held records."""
        key = record.key
        if key in self._expected:
            self._names.setdefault(key, record.value)
        ready = len(self._names) == 2 or (
            "submission_benchmark" in self._names and not rules.has_divisions(self.ruleset)
        )
        return self._replay() if ready or len(self._waiting) > MAX_HELD else _NONE

    def _replay(self) -> list[Finding]:
        records, self._waiting = self._waiting, None
        findings = self._begin()
        for record in records:
            findings.extend(self._apply(record))
        return findings

    def _begin(self) -> list[Finding]:
        """Loads the rules of the requested benchmark, else of the one that the log names or most likely means."""
        division = self._resolve("submission_division", rules.DIVISIONS)
        benchmark = self._resolve("submission_benchmark", rules.benchmarks(self.ruleset, division))
        if f"{division}/common" in rules.names(self.ruleset):
            self._add(f"{division}/common")
        if benchmark is None or (division is None and rules.has_divisions(self.ruleset)):
            return []
        self.benchmark, self.division = benchmark, division
        name = rules.section_name(self.ruleset, division, benchmark)
        self._checked = True
        if name not in rules.names(self.ruleset):
            expected = "a benchmark with rules in this division"
            return [self._make("benchmark.no-rules", ERROR, None, expected, name, ruleset=self.ruleset)]
        self._add(name)
        if division == "closed":
            self._written_keys = written_rules.keys(self.ruleset, benchmark)
        if benchmark in self._common.get("own_benchmarks", ()):
            expected = "an MLPerf benchmark in a submission"
            return [self._make("benchmark.own", ADVICE, None, expected, benchmark)]
        return []

    def _resolve(self, key: str, names) -> str | None:
        expected = self._expected[key]
        return expected if expected is not None else nearest(self._names.get(key), names)

    def _add(self, name: str) -> None:
        info = rules.load(self.ruleset, name)
        self.info = {**self.info, **{word: value for word, value in info.items() if word != "keys"}}
        added = rules.compiled(self.ruleset, name)
        for key in info.get("removes", ()):
            self._rules.pop(key, None)
        self._rules.update(added)
        self._joins = self.info.get("aggregates")
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
        handler = self.whole_run.handlers.get(key)
        rule = self._rules.get(key)
        how = self._joins
        if how is not None and key == how["key"] and not self._past.join(how, record):
            about = f"metadata {how['metadata']} and {how['by']}", text_of(record.metadata)
            return [self._make(f"{key}.metadata", ERROR, record, *about, wording="metadata", key=key)]
        if key in self._written_keys:
            self._written_records.setdefault(key, record)
        if rule is None:
            if handler is not None:
                remark = handler(record)
                return [remark] if remark else _NONE
            if key in self._late_keys:
                self._late.setdefault(self._late_keys[key], []).append(record)
                if len(self._late[self._late_keys[key]]) > MAX_HELD:
                    del self._late_keys[key]
            elif len(self._unknown) < _MAX_UNKNOWN_KEYS:
                self._unknown.add(key[:80])
            return _NONE
        findings: list[Finding] = []
        before = self._counts.get(key, 0)
        if not before:
            self._values[key] = record.value
        elif rule.once:
            findings.append(self._reports.repeated(record, self._values[key]))
        if not (before and "submission_" in key):
            state, times = self._state, self.whole_run.times
            for aspect, test, expected, say in rule.checks:
                if not test(record, self._counts, state, times):
                    expected = expected if isinstance(expected, str) else expected(record, state)
                    findings.append(self._reports.broken(rule, aspect, record, expected, say, times))
            if not findings and self._expected.get(key) not in (None, record.value):
                about = f"{key}.asked", ERROR, record, self._expected[key], text_of(record.value)
                findings.append(self._make(*about, wording="asked"))
            if rule.keeps and (lacking := self._past.remember(rule, record)):
                expected = f"a number that gives {lacking}"
                findings.append(self._reports.broken(rule, "value", record, expected, ""))
        if rule.sets:
            self._past.set(rule.sets, record)
        self._counts[key] = before + 1
        if handler is not None and (remark := handler(record)):
            findings.append(remark)
        if key == self._target_key:
            findings.extend(self._accuracy(record))
        if rule.selects is not None and not before:
            findings.extend(self._bring_in(rule, record))
        return findings

    @property
    def declared(self) -> dict[str, object]:
        """Returns the first value of each logged key, including benchmark and division."""
        return self._values

    def _accuracy(self, record: Record) -> list[Finding]:
        if self.target is None:
            self.whole_run.comparable = False
            return _NONE
        meets_target = self.target.judge(record.value, self._values.get(self.target.by))
        self.whole_run.accuracy(record, bool(meets_target))
        if "goal" in self.info:
            if meets_target is None:
                self.whole_run.comparable = False
            return _NONE
        if meets_target is None:
            expected = self.target.expected + (f", after {self.target.by}" if self.target.by else "")
            about = ERROR, record, expected, text_of(record.value)
            return [self._make("eval_accuracy.target", *about, wording="eval_accuracy.target.type")]
        if meets_target:
            return _NONE
        if self._best is None or self.target.nearer(record.value, self._best.value):
            self._best = record
        remark = self._reports.odd_accuracy(record, self.target)
        return [remark] if remark else _NONE

    def _bring_in(self, rule: rules.KeyRule, record: Record) -> list[Finding]:
        """Adds the rules that this key's value selects and applies them to the earlier records."""
        choice = nearest(record.value, rule.allowed)
        if choice is None:
            return _NONE
        self._late_keys = {key: by for key, by in self._late_keys.items() if by != rule.key}
        self._add(rule.selects.format(choice))
        findings: list[Finding] = []
        for late_record in self._late.pop(rule.key, ()):
            findings.extend(self._apply(late_record))
        return findings

    # -------------------------------------------------------------------------------------- the end

    def finish(self) -> list[Finding]:
        """Returns the findings about the whole log."""
        if not self.records:
            return [self._reports.empty(self._foreign, self._unread)]
        findings = self._replay() if self._waiting is not None else []
        for total in self._past.joined():
            findings += self._apply(total)
        findings += self._missing()
        if not self._checked and not any(one.rule.startswith("submission_benchmark.") for one in findings):
            expected, actual = "submission_benchmark and submission_division", "no value that selects rules"
            names = {"what": "the rules of the benchmark", "fix": f"log {expected} in the header"}
            findings.append(self._make("not-checked", ERROR, None, expected, actual, **names))
        required = self.target is not None and "goal" not in self.info and self._target_key in self._counts
        if required and self.whole_run.best is None and not self.whole_run.aimless:
            findings.append(self._reports.missed(self._best, self.target))
        findings += self.whole_run.end(self.info, self.target and self.target.spec)
        if self._checked and self.division == "closed":
            findings += self._against_written_rules()
        if self._disorder is not None:
            lines = self._disordered if len(self._disordered) > 1 else ()
            findings.append(self._disorder._replace(lines=lines))
        return findings

    def _against_written_rules(self) -> list[Finding]:
        """Compares with the written rules what no rule of the stock checker looks at."""
        values = self._values | {key: record.value for key, record in self._written_records.items()}
        findings = [
            self._make("written.value", ADVICE, self._written_records[key], expected, text_of(value), key=key)
            for key, expected, value in written_rules.differences(self.ruleset, self.benchmark, values)
        ]
        row = written_rules.schedule(self.ruleset, self.benchmark)
        places = self.whole_run.evaluations.at[written_rules.UNITS[row["unit"]]] if row else []
        wrong = written_rules.off_schedule(row, values, places) if row else None
        if wrong is not None:
            findings.append(self._make("written.schedule", ADVICE, None, *wrong))
        return findings

    def _missing(self) -> list[Finding]:
        findings, reports, unknown = [], self._reports, self._unknown
        for key, rule in self._rules.items():
            count = self._counts.get(key, 0)
            if count < rule.times:
                findings.append(reports.few(key, rule, count, unknown))
            for other, value in rule.spec.get("once_if", {}).items():
                times = 1 if self._values.get(other) == value else 0
                if count != times:
                    names = {"wording": "occurs.with", "key": key, "other": other, "value": value}
                    findings.append(self._make(f"{key}.occurs", ERROR, None, str(times), str(count), **names))
        for keys in self._common.get("one_of", ()):
            if not any(key in self._counts for key in keys):
                findings.append(reports.absent(" or ".join(keys), "at least one", unknown))
        return findings + [reports.uncollected(*lacking) for lacking in self._past.incomplete(self._rules)]
