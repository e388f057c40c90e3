"""Tests the SARIF form: the structure that the standard requires, paths, lines, hostile text."""

import json
import re
from urllib.parse import unquote, urlsplit

from compliance import Outcome, check, formats
from compliance.findings import Finding
from tests.compliance import result_logs

# The properties that SARIF 2.1.0 requires, and their types, of the objects that we write (sections 3.13, 3.14, 3.18,
# 3.19, 3.24, 3.27, 3.28, 3.29, 3.30, 3.49 of the standard).
REQUIRED = {
    "log": {"version": str, "runs": list}, "run": {"tool": dict}, "tool": {"driver": dict},
    "driver": {"name": str}, "rule": {"id": str}, "result": {"message": dict}, "message": {"text": str},
    "invocation": {"executionSuccessful": bool},
}  # fmt: skip
HOSTILE = Finding(
    "a.b", "error", "a b/\udcff&?#.txt", 2, "<script>\x1b[2J\ud800", 'm "<&>"\x00', "e", "\x07f", "x", (2, 9)
)


def holds(content, kind):
    for name, type_ in REQUIRED[kind].items():
        assert isinstance(content[name], type_), (kind, name)


def parsed(outcome):
    """The SARIF of an outcome, with the required structure asserted."""
    log = json.loads(formats.FORMATS["sarif"](outcome))
    holds(log, "log")
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    holds(run, "run")
    holds(run["tool"], "tool")
    driver = run["tool"]["driver"]
    holds(driver, "driver")
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(ids) == len(set(ids))
    for rule in driver["rules"]:
        holds(rule, "rule")
        holds(rule["shortDescription"], "message")
        assert rule["defaultConfiguration"]["level"] in ("error", "note")
    for invocation in run["invocations"]:
        holds(invocation, "invocation")
        assert invocation["executionSuccessful"] is True, "the check ran, whatever it found"
    for result in run["results"]:
        holds(result, "result")
        holds(result["message"], "message")
        assert result["level"] in ("error", "note") and ids[result["ruleIndex"]] == result["ruleId"]
        for place in (*result["locations"], *result.get("relatedLocations", ())):
            physical = place["physicalLocation"]
            assert re.fullmatch(r"[\x21-\x7e]+", physical["artifactLocation"]["uri"])
            assert physical.get("region", {"startLine": 1})["startLine"] >= 1
    return run


def test_a_failed_log(tmp_path, monkeypatch):
    path = tmp_path / "with space" / "result_0.txt"
    path.parent.mkdir()
    path.write_text(result_logs.log("resnet", status="aborted") + ":::MLLOG nonsense\n" * 300)
    monkeypatch.chdir(tmp_path)
    for named in (path, path.relative_to(tmp_path)):
        run = parsed(check([named]))
        found = {result["ruleId"]: result for result in run["results"]}
        assert {"eval_accuracy.target", "line-json"} <= set(found)
        lines = found["line-json"]
        assert len(lines["relatedLocations"]) == 99 and "300 lines in all" in lines["message"]["text"]
        place = lines["locations"][0]["physicalLocation"]
        assert place["artifactLocation"] == {"uri": "with%20space/result_0.txt", "uriBaseId": "%SRCROOT%"}
        first = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "nonsense" in text)
        assert place["region"]["startLine"] == first
        assert run["invocations"][0]["exitCode"] == 1 and run["properties"]["verdict"] == "no-go"


def test_a_good_log_elsewhere(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text(result_logs.log("resnet"))
    run = parsed(check([path]))
    uri = urlsplit(run["artifacts"][0]["location"]["uri"])
    assert (uri.scheme, unquote(uri.path)) == ("file", str(path)) and run["results"] == []


def test_whatever_the_log_holds():
    run = parsed(Outcome([HOSTILE.path], [HOSTILE, HOSTILE._replace(severity="advice")], []))
    text = json.dumps(run, ensure_ascii=False)
    assert not re.search("[\x00-\x1f\ud800]", text)
    assert [result["level"] for result in run["results"]] == ["error", "note"]
