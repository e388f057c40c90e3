"""What the tests of fixes share: findings by their wording, and the fixes that no edit of a copy can show."""

import re
from string import Formatter

from compliance.findings import texts

# The wordings of findings that refuse nothing; the others are errors.
ADVICE = {
    "cache_clear.false", "config.missing", "count",
    "eval.place", "eval.schedule", "eval_accuracy.scale", "interval.unpaired", "line-other-form", "line-token",
    "log.framework", "name.hidden", "occurs.again",
    "run.before-init", "run.first-epoch", "run_stop.place", "run_stop.status-word", "seed.whole", "smoke_run",
    "system.count", "system.name", "system.twice", "time.micro", "time.seconds", "tree.alike", "tree.alike.near",
    "tree.archive", "tree.at-once", "tree.batch", "tree.cache", "tree.compiled", "tree.duplicate", "tree.fast",
    "tree.file-missing", "tree.gap", "tree.layout", "tree.name.checkout", "tree.organization", "tree.placeholder",
    "tree.samples", "tree.settings", "tree.short", "tree.status", "tree.system", "tree.system-unclear",
    "tree.system.file", "tree.value", "written.schedule", "written.value", "not-checked|name it result_",
    "not-checked|move them up",
}  # fmt: skip
NOTHING, COMMITTEE, RUN = "says that nothing is to do", "others decide", "needs another run"
UNREADABLE = "is about a file that the system refuses to read, or about a fault of the checker"
NOT_ON_A_COPY = {
    "benchmark.own": NOTHING, "line.order": NOTHING, "tree.score.dropped": NOTHING,
    "no-records.older": NOTHING, "not-checked.family": NOTHING, "not-checked.hpc": NOTHING,
    "tree.rcp.bypass": COMMITTEE,
    "not-checked|make it readable": UNREADABLE, "not-checked|make the file readable": UNREADABLE,
    "not-checked|nothing: this checker has no rules": NOTHING,
    "eval_accuracy.nan": RUN, "no_mlperf_result": RUN, "resumed_from_step": RUN,
}  # fmt: skip


def is_advice(wording):
    return wording in ADVICE or wording.partition("|")[0] in ADVICE


def of_wording(findings, wording):
    """The findings with the message and the fix of a wording in texts.json; `wording|start`: whose fix begins so."""
    name, _, start = wording.partition("|")
    message, fix = (pattern(texts()["wording"][name][part]) for part in ("message", "fix"))
    return [
        one for one in findings
        if re.fullmatch(message, one.message, re.S) and re.fullmatch(fix, one.fix, re.S) and one.fix.startswith(start)
    ]  # fmt: skip


def pattern(template):
    """The regular expression of the texts that a template gives."""
    return "".join(
        re.escape(text) + ("" if name is None else ".*") for text, name, *_ in Formatter().parse(template)
    )


def summaries(findings):
    """What findings say, without their places."""
    return {(one.rule, one.severity, one.message) for one in findings}
