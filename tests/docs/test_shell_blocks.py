"""Tests the shell blocks of README.md, getting started and your own data by running them in a copy of the repository.

A block is a fence of `sh`. A block that is not run here has a comment before it with the reason,
`<!-- needs: ... -->`, or with the test that runs it, `<!-- run by: tests/... -->`, or that runs it on a real log,
`<!-- checked by: tests/... -->`. A fence of `text` after a block
that is run shows its output.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import systems
from tests.benchmarks import missing
from tests.compliance import result_logs
from tools.docs import markdown

ROOT = markdown.ROOT
PAGES = ("README.md", "docs/getting-started.md", "docs/your-own-data.md")
_FENCE = re.compile(
    r"(?:^<!-- (?P<kind>[a-z ]+): (?P<words>.+?) -->\n+)?^```(?P<language>\S*)\n(?P<text>.*?)^```$",
    re.M | re.S,
)
SECONDS = 120


@dataclasses.dataclass(frozen=True)
class Block:
    """A fence: `kind` and `words` come from the comment before it, `output` is what the page shows."""

    page: str
    text: str
    kind: str
    words: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:60]}"


def blocks(page: str) -> list[Block]:
    fences = list(_FENCE.finditer((ROOT / page).read_text(encoding="utf-8")))
    listed = []
    for fence, following in zip(fences, [*fences[1:], None]):
        if fence["language"] == "sh":
            printed = following["text"] if following and following["language"] == "text" else ""
            listed.append(Block(page, fence["text"], fence["kind"] or "", fence["words"] or "", printed))
    return listed


ALL = [block for page in PAGES for block in blocks(page)]
RUN = [block for block in ALL if not block.kind]


@functools.cache
def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory):
    """Returns make(page), which copies the checkout as it is now, with the results of `make demo`."""

    @functools.cache
    def make(page: str) -> pathlib.Path:
        copy = tmp_path_factory.mktemp("checkout") / "timetotrain"
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(copy)], check=True)
        for name in markdown.tracked():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        (copy / ".venv").symlink_to(sys.prefix)
        place = result_logs.write_results(
            copy / "results",
            "resnet",
            system="cpu-tiny",
            description=systems.detect()[0],
            count=1,
            smoke=True,
        )
        record = json.loads((place / "run.json").read_text())
        record["runs"]["result_0.txt"]["git"]["commit"] = output("git", "rev-parse", "HEAD").strip()
        (place / "run.json").write_text(json.dumps(record))
        return copy

    return make


@pytest.mark.parametrize("block", RUN, ids=str)
def test_a_block_runs_and_prints_what_the_page_shows(block: Block, workspace) -> None:
    variables = {
        name: value for name, value in os.environ.items() if name not in ("SYSTEM", "DATA_DIR", "RESULT_DIR")
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=workspace(block.page),
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}"
    lines = missing(block.output, done.stdout)
    assert not lines, f"{block} does not print {lines} but\n{done.stdout}"


@pytest.mark.parametrize("block", [block for block in ALL if block.kind], ids=str)
def test_a_block_that_is_not_run_says_why(block: Block) -> None:
    assert block.kind in ("needs", "run by", "checked by") and block.words
    if block.kind == "checked by":
        assert "blocks(" in (ROOT / block.words).read_text(encoding="utf-8")
    if block.kind == "run by":
        text = (ROOT / block.words).read_text(encoding="utf-8")
        for benchmark in run_and_time(block.text):
            assert f'runner("{benchmark}")' in text, f"{block.words} does not run {benchmark}"


def run_and_time(text: str) -> list[str]:
    """The benchmarks whose cpu-tiny a block runs, by their script or by a target of the Makefile."""
    commands = text.splitlines()
    for line in text.splitlines():
        if target := re.match(r"make (\w+)", line):
            commands += output("make", "-n", target[1]).splitlines()
    actual = [
        run[1] for line in commands if (run := re.search(r"SYSTEM=cpu-tiny \./(\w+)/run_and_time\.sh", line))
    ]
    assert actual, f"{text!r} runs no benchmark"
    return actual


@pytest.mark.parametrize("page", PAGES)
def test_every_fence_says_what_it_is(page: str) -> None:
    fences = [
        line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("```")
    ]
    assert len(fences) % 2 == 0
    assert set(fences[::2]) <= {"```sh", "```text"} and set(fences[1::2]) == {"```"}
    assert [block for block in blocks(page) if not block.kind], f"no block of {page} is run"


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert max(map(len, text.splitlines())) <= 300
