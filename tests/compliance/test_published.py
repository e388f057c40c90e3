"""Tests that the verdict on every available published log equals the stock checker's at the round's ruleset."""

from collections import Counter

import pytest

from compliance.api import check
from compliance.log.check_log import check_log
from lab.bench.harness import stock_checker
from tests.compliance import published_logs

# round: (pass, fail, crash) of the stock checker over the logs; a crash counts as a failure of the log.
EXPECTED = {"v0.6": (30, 35, 5), "v0.7": (328, 2, 15)}


@pytest.mark.parametrize("name", published_logs.ROUNDS)
def test_verdicts_equal_the_stock_checkers(name):
    ruleset, counts, different = published_logs.ROUNDS[name], Counter(), []
    for path in published_logs.logs(name):
        theirs, messages = stock_checker.verdict(path, ruleset)
        ours = check_log(str(path), ruleset)
        counts[theirs] += 1
        if ours.passes != (theirs == "pass"):
            different.append((str(path), theirs, messages[:2], [f.rule for f in ours.findings]))
    assert not different
    assert (counts["pass"], counts["fail"], counts["crash"]) == EXPECTED[name]


def test_the_whole_round_is_checked_as_a_tree():
    outcome = check([published_logs.folder() / "v0.7"])
    assert len(outcome.logs) == 345
    failing = {log.path.split("/results/")[0].rsplit("/", 1)[1] for log in outcome.logs if not log.passes}
    assert failing == {"Alibaba", "Google"}
    # Two special cases: 15 logs name the time `time_s`; one directory mixes divisions.
    fixes = {finding.fix for finding in outcome.findings if finding.rule == "line-field"}
    assert fixes == {"write the time as time_ms, in milliseconds since the epoch"}
    mixed = [finding.path for finding in outcome.findings if finding.rule == "tree.division"]
    assert [path.split("/results/")[1] for path in mixed] == ["modelarts_512_tensorflow_open/resnet"]
