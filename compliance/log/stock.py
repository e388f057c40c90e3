"""Reads a log's lines as the stock programs of its round do: each line is parsed, refused, or ends the program.

The stock package checker runs three programs over every log of a folder, whether the score counts the run or drops it:
its compliance checker, its seed checker and its RCP checker. One line that the seed checker cannot parse refuses the
folder, and one on which a program raises leaves the folder without a verdict. A dropped run does not excuse either.
Source: mlperf_logging 4.1.68, compliance_checker/{mlp_compliance,mlp_parser}, package_checker/{package,seed}_checker.py
and rcp_checker/rcp_checker.py. Round v0.6 has no package checker.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from compliance.log import rules
from compliance.log.logs import CRASHES, REFUSES, BadLine, Record, text_of

PARSER, RULES, RCP = "compliance checker", "rules of the compliance checker", "RCP checker"
# rcp_checker.py, read_submission_file: these benchmarks converge after samples, the others after epochs.
SAMPLES = frozenset((
    "llama2_70b_lora", "flux1", "llama31_405b", "llama31_8b", "gpt_oss_20b", "deepseekv3_671b", "qwen35_397b_grpo",
    "dlrmv4",
))  # fmt: skip
# rcp_checker.py: stable diffusion converges at the first evaluation that meets both bounds.
FID_AT_MOST, CLIP_AT_LEAST = 90.0, 0.15
_DIFFUSION = "stable_diffusion"
_MAX_STEPS = 10_000
_WHOLE_LOG = BadLine(0, "", "", "", "")  # a failure at no line
_WHOLE_TEXT = 400  # characters of a record's line that `Record.text` has


class Failure(NamedTuple):
    """What a stock program does at a line: `effect` is REFUSES or CRASHES, `why` what it sees there."""

    program: str
    effect: str
    line: int
    text: str
    why: str


class StockReader:
    """Follows one log; `take` takes its records and bad lines in order, `end` returns what the programs make of them.

    Of each program and effect it keeps the first line.
    """

    def __init__(self, ruleset: str) -> None:
        self._ruleset = ruleset
        self._failures: dict[tuple[str, str], Failure] = {}
        self._benchmark: object = None
        self._batch: object = None
        self._evaluated = False
        self._step = "step_num" if ruleset == "3.1.0" else "samples_count"
        self._scores: dict[object, dict] = {}  # of stable diffusion
        self._accuracies: dict[type, Record] = {}  # the first eval_accuracy of each type
        self.take: Callable[[Record | BadLine], None] = self._skip if ruleset == "0.6.0" else self._take

    def _skip(self, record: Record | BadLine) -> None:
        pass

    def _note(self, program: str, effect: str, record: Record | BadLine, why: str) -> None:
        self._failures.setdefault((program, effect), Failure(program, effect, record.line, record.text, why))

    def _take(self, record: Record | BadLine) -> None:
        if record.__class__ is BadLine:
            if record.stock:
                self._note(PARSER, record.stock, record, record.actual)
            return
        key, text = record.key, record.text
        if key == "eval_accuracy":
            self._accuracies.setdefault(record.value.__class__, record)
        if len(text) >= _WHOLE_TEXT:
            text += text_of((record.value, record.metadata), 1 << 20)
        # The RCP checker looks for words anywhere in a line, not for keys.
        if "global_batch_size" in text:
            self._batch = self._one_key("global_batch_size", record, self._batch)
        if "submission_benchmark" in text:
            self._benchmark = self._one_key("submission_benchmark", record, self._benchmark)
        if "eval_accuracy" in text or "eval_error" in text:
            self._evaluation(record)
        if key == "run_stop":
            self._stop(record)

    def _one_key(self, key: str, record: Record, before: object) -> object:
        """Returns the value that the RCP checker takes for a key from a line with its name, which may be another's."""
        if record.key != key and record.value != before:
            why = f"takes {text_of(record.value, 40)} of {record.key[:40]} for {key}"
            self._note(RCP, REFUSES, record, why)
        return record.value

    def _evaluation(self, record: Record) -> None:
        place = record.metadata
        if self._benchmark == _DIFFUSION:
            step, metric = place.get(self._step), place.get("metric")
            if isinstance(step, (dict, list, type(None))) or not isinstance(metric, str):
                self._note(RCP, CRASHES, record, f"metadata {self._step} and metric of an evaluation")
            elif len(self._scores) < _MAX_STEPS:
                self._scores.setdefault(step, {})[metric] = record.value
            return
        of_samples = isinstance(self._benchmark, str) and self._benchmark in SAMPLES
        unit = "samples_count" if of_samples else "epoch_num"
        if unit not in place:
            self._note(RCP, CRASHES, record, f"an evaluation without metadata {unit}")
        elif not isinstance(place[unit], (int, float)) or place[unit] != place[unit]:
            self._note(RCP, CRASHES, record, f"{unit} is {text_of(place[unit], 40)}")
        self._evaluated = True

    def _stop(self, record: Record) -> None:
        if "status" not in record.metadata:
            self._note(RCP, CRASHES, record, "run_stop without metadata status")
        elif record.metadata["status"] == "success":
            if self._benchmark == _DIFFUSION and not self._meets_target():
                self._note(
                    RCP, CRASHES, record, "success without an evaluation that has FID and CLIP at the target"
                )
            elif self._benchmark != _DIFFUSION and not self._evaluated:
                self._note(RCP, CRASHES, record, "success without an evaluation before")

    def _meets_target(self) -> bool:
        """Whether the RCP checker gets through the evaluations of stable diffusion, and one meets both bounds."""
        try:
            fid = [score for score in self._scores.values() if score["FID"] <= FID_AT_MOST]
            return bool([score for score in fid if score["CLIP"] >= CLIP_AT_LEAST])
        except (KeyError, TypeError):
            return False

    def end(self, declared: Mapping[str, object], target: Mapping[str, object] | None) -> tuple[Failure, ...]:
        """Returns what the programs see.

        Args:
          declared: the first value of each key.
          target: the target of the benchmark's rules; None if they have none.
        """
        if self._ruleset == "0.6.0":
            return ()
        self._rules(declared)
        if self._benchmark is None:
            self._note(RCP, CRASHES, _WHOLE_LOG, "a log without submission_benchmark")
        if target is not None and self._benchmark != _DIFFUSION:
            fields = target.get("fields", {})
            for kind, record in self._accuracies.items():
                fits = (
                    kind is dict and fields.keys() <= record.value.keys()
                    if fields
                    else kind in (int, float, bool)
                )
                if not fits:
                    why = f"compares {text_of(record.value, 40)} with the target"
                    self._note(RULES, CRASHES, record, why)
        return tuple(self._failures.values())

    def _rules(self, declared: Mapping[str, object]) -> None:
        """Notes a benchmark, a division or an optimizer for which the compliance checker opens a missing rule file."""
        division, benchmark = declared.get("submission_division"), declared.get("submission_benchmark")
        if division is not None and division not in rules.DIVISIONS:
            self._file("submission_division", division)
        elif division is not None and benchmark is not None:
            if not isinstance(benchmark, str) or not rules.has_rules(self._ruleset, benchmark, division):
                self._file("submission_benchmark", benchmark)
            else:
                section = rules.load(self._ruleset, rules.section_name(self._ruleset, division, benchmark))
                for key, spec in section["keys"].items():
                    if "selects" in spec and key in declared and declared[key] not in spec["value"]["in"]:
                        self._file(key, declared[key])

    def _file(self, key: str, value: object) -> None:
        self._note(
            RULES, CRASHES, _WHOLE_LOG, f"opens the rules of {key} {text_of(value, 60)}, which are not there"
        )
