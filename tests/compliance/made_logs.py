"""Makes a valid log for every benchmark of every round from 0.7.0 on, out of the rule files alone."""

import ast
import json
from contextlib import suppress
from itertools import product

from common.errors import UserError
from compliance.log import rules
from compliance.log.formulas import FAILURES, compile_formula
from compliance.log.logs import Record
from compliance.log.predicates import compile_predicate

_START = 1_700_000_000_000
_NUMBERS = (1, 1152, 0.5, 0.001, 2, 72, 16, True, "x", [40, 50], [1, 2], {"x": 1})
_CHOSEN = {"global_batch_size": 1152, "num_prompts_per_step": 72}
_EVENTS = ("cache_clear", "init_start", "init_stop", "run_start")
_TRAINING = (
    "block_start", "epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "eval_stop", "block_stop",
)  # fmt: skip
_METADATA = {"first_epoch_num": 1, "epoch_count": 1, "epoch_num": 1, "samples_count": 1152, "step_num": 4}


def every_case():
    """(ruleset, division, benchmark, optimizer or '') of every benchmark file."""
    for ruleset in rules.RULESETS[1:]:
        for name in sorted(rules.names(ruleset)):
            division, _, benchmark = name.partition("/")
            if not benchmark or benchmark == "common" or benchmark.startswith("resnet_"):
                continue
            if benchmark not in rules.benchmarks(ruleset, division):
                continue
            selects = any("selects" in spec for spec in rules.load(ruleset, name)["keys"].values())
            for optimizer in ("sgd", "lars") if selects else ("",):
                yield ruleset, division, benchmark, optimizer


def log(ruleset, division, benchmark, optimizer=""):
    """The records of a valid log, as dictionaries."""
    return _Maker(ruleset, division, benchmark, optimizer).records()


def v06(**changes):
    """A minimal log of round v0.6: one epoch in one block, with one evaluation."""
    names = ("submission_org", "submission_platform", "submission_poc_name", "submission_entry")
    head = dict.fromkeys(names, "x")
    head |= {"submission_division": "closed", "submission_status": "onprem", "submission_benchmark": "gnmt"}
    head |= {"cache_clear": True, **dict.fromkeys(rules.compiled("0.6.0", "any/gnmt"), 1)}
    head |= {"opt_learning_rate_alt_decay_func": True, "opt_learning_rate_alt_warmup_func": False}
    epoch, block = {"epoch_num": 1}, {"first_epoch_num": 1}
    events = [("init_start", {}), ("init_stop", {}), ("run_start", {})]
    events += [("block_start", {**block, "epoch_count": 1}), ("epoch_start", epoch), ("epoch_stop", epoch)]
    events += [("eval_start", epoch), ("eval_accuracy", epoch), ("eval_stop", epoch), ("block_stop", block)]
    events += [("run_stop", {"status": "success"})]
    lines = [(key, {"value": value, "metadata": {}}) for key, value in {**head, **changes}.items()]
    return with_accuracy(24.5, lines + [(key, {"value": None, "metadata": place}) for key, place in events])


def with_accuracy(value, lines):
    return [(key, {**body, "value": value} if key == "eval_accuracy" else body) for key, body in lines]


def seconds(lines):
    return "".join(f":::MLL {100 + n}.5 {key}: {json.dumps(body)}\n" for n, (key, body) in enumerate(lines))


def lines(records):
    """The text of a log."""
    return "".join(f":::MLLOG {json.dumps(one)}\n" for one in records)


def record(key, value=None, time_ms=0, event="POINT_IN_TIME", **metadata):
    """A line of a log, without its end."""
    fields = {"namespace": "", "time_ms": time_ms, "event_type": event, "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**fields, "metadata": {"file": "train.py", "lineno": 7, **metadata}})


def records_of(text):
    """The records of a log's text, as dictionaries."""
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]


def write(folder, text, name="result_0.txt"):
    """Writes a log into a folder; returns its path."""
    path = folder / name
    path.write_text(text)
    return path


def with_record(text, key, value, before="init_stop"):
    """The log with a record of another key, a value as JSON, right before the first record of a key."""
    lines = text.splitlines(keepends=True)
    at = next(index for index, line in enumerate(lines) if f'"{before}"' in line)
    record = json.loads(lines[at].removeprefix(":::MLLOG ")) | {"key": key, "value": json.loads(value)}
    return "".join([*lines[:at], f":::MLLOG {json.dumps(record)}\n", *lines[at:]])


class _Maker:
    def __init__(self, ruleset, division, benchmark, optimizer):
        self.choices = {"submission_division": division, "submission_benchmark": benchmark, **_CHOSEN}
        self.choices |= {"opt_name": optimizer} if optimizer else {}
        files = ["common", f"{division}/common", f"{division}/{benchmark}"]
        files += [f"{division}/{benchmark}_{optimizer}"] if optimizer else []
        self.rules, self.state, self.info = {}, {}, {}
        for name in files:
            if name in rules.names(ruleset):
                self.rules.update(rules.compiled(ruleset, name))
                loaded = rules.load(ruleset, name)
                self.state.update(loaded.get("state", {}))
                self.info.update(loaded)
        self.counts, self.times, self.log = {}, {}, []

    def records(self):
        event_keys = {*_EVENTS, *_TRAINING, "run_stop", "aggregated_eval_accuracy"}
        header = [key for key in self.rules if key not in event_keys]
        header.sort(key=lambda key: ("formula" in self.rules[key].spec) - 2 * bool(self.rules[key].remembers))
        first = [key for key in header if key.startswith("submission_")] + ["global_batch_size"]
        for key in [*_EVENTS[:2], *dict.fromkeys(first), *header, *_EVENTS[2:], *_TRAINING, "run_stop"]:
            rule = self.rules.get(key)
            if rule is None or key in self.counts:
                continue
            if rule.collects:
                for name in rule.collects["all_of"]:
                    self._add(rule, {"tensor": name})
            elif key == "eval_accuracy" and "aggregates" in self.info:
                self._metrics(rule)
            else:
                self._add(rule, {})
        return self.log

    def _metrics(self, rule):
        for at, (metric, value) in product((4, 8), (("FID", 80.0), ("CLIP", 0.2))):
            metadata = {"metric": metric, "samples_count": at, "step_num": at, "epoch_num": at}
            self._record(rule, value, metadata)

    def _add(self, rule, metadata):
        key, spec = rule.key, rule.spec
        metadata = (
            {**_METADATA, "status": "success", "tensor": "x", **metadata} if key not in _EVENTS else metadata
        )
        metadata |= {name: one["in"][0] for name, one in spec.get("metadata", {}).items() if "in" in one}
        values = [*([self.choices[key]] if key in self.choices else []), *self._candidates(spec)]
        counts = [1152, *(one for one in self._candidates(spec) if isinstance(one, int))]
        for value, count in product(values, counts if key == "eval_accuracy" else [1152]):
            if "samples_count" in metadata:
                metadata = {**metadata, "samples_count": count}
            if self._fits(rule, value, metadata):
                return self._record(rule, value, metadata)
        raise AssertionError(f"no value found for {key}: {spec}")

    def _fits(self, rule, value, metadata):
        record = Record(rule.key, value, metadata, _START + len(self.log), "", "", 1, "")
        fits = all(check[1](record, self.counts, self.state, self.times) for check in rule.checks)
        if rule.target is None or "by" in rule.target:
            return fits and (rule.target is None or compile_predicate(rule.target["then"])(value))
        return fits and compile_predicate(rule.target)(value)

    def _record(self, rule, value, metadata):
        time = _START + len(self.log)
        self.log.append(
            {"namespace": "", "time_ms": time, "event_type": "POINT_IN_TIME", "key": rule.key, "value": value,
             "metadata": metadata}
        )  # fmt: skip
        self.counts[rule.key] = self.counts.get(rule.key, 0) + 1
        self.times.setdefault(rule.key, time)
        for name, formula in rule.remembers:
            self.state[name] = formula(value, metadata, self.state)

    def _candidates(self, spec):
        """The constants of a key's rules, what its formulas compute, and some numbers."""
        actual = []

        def constants(part):
            if isinstance(part, dict):
                for one in part.values():
                    constants(one)
            elif isinstance(part, list):
                actual.append(part)
                for one in part:
                    constants(one)
            else:
                actual.append(part)

        constants({name: spec[name] for name in ("value", "target") if name in spec})
        numbers = [one for one in actual if isinstance(one, (int, float))]
        computed = []
        for one in (one for word in ("formula", "first_formula") for one in spec.get(word, ())):
            parts = [part for part in ast.walk(ast.parse(one)) if isinstance(part, ast.expr)]
            for text in map(ast.unparse, parts):
                with suppress(*FAILURES, UserError):
                    computed.append(compile_formula(text)(None, {}, self.state))
            numbers += [part.value for part in parts if isinstance(part, ast.Constant)]
        middle = [(one + other) / 2 for one in numbers for other in numbers]
        pairs = [{"BBOX": one, "SEGM": one} for one in (*numbers, 0.5)]
        return [*computed, *(one for one in actual if not isinstance(one, list)), *middle, *_NUMBERS, *pairs]
