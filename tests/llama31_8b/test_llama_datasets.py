"""Tests init_datasets.sh with a downloader of our own in place of MLCommons': places, sizes, one line for a fault."""

import os
import subprocess
import sys

import pytest

from tests.benchmarks import ROOT

SCRIPT = ROOT / "llama31_8b" / "init_datasets.sh"
# {name: bytes} of the published files (llama31_8b/init_datasets.sh).
FILES = {
    "c4-train.en_6_text_document.bin": 83_976_774_280,
    "c4-train.en_6_text_document.idx": 912_172_262,
    "c4-validation-91205-samples.en_text_document.bin": 166_568_364,
    "c4-validation-91205-samples.en_text_document.idx": 1_824_142,
    "tokenizer.json": 9_085_658,
}


@pytest.fixture
def fill(tmp_path):
    """Returns call(text of the downloader), which runs the script; the sizes are sparse files."""
    script = tmp_path / "downloader.sh"

    def call(text: str, **variables: str) -> subprocess.CompletedProcess:
        script.write_text('set -e\nmkdir -p "$2/inner"\necho "$3" >>"$CALLS"\n' + text)
        environment = {
            **os.environ, "DATA_DIR": str(tmp_path / "data"), "DOWNLOADER": str(script), "PYTHON": sys.executable,
            "CALLS": str(tmp_path / "calls"), "DATA_URI": "data.uri", "TOKENIZER_URI": "tokens.uri", **variables,
        }  # fmt: skip
        return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)

    return call


def made(*names: str) -> str:
    return "".join(f'truncate -s {FILES[name]} "$2/inner/{name}"\n' for name in names)


TEXT, TOKENIZER = list(FILES)[:4], ["tokenizer.json"]
BOTH = f"if [ $3 = data.uri ]; then {made(*TEXT)} else {made(*TOKENIZER)} fi\n"


def test_files_are_placed_and_not_downloaded_twice(fill, tmp_path):
    assert fill(BOTH).returncode == 0
    assert {n: (tmp_path / "data" / n).stat().st_size for n in FILES} == FILES
    assert (tmp_path / "calls").read_text().split() == ["data.uri", "tokens.uri"]
    assert fill("exit 1\n").returncode == 0
    assert not (tmp_path / "data" / "download" / "tokenizer").exists()


def test_an_absent_or_short_file_is_one_line(fill, tmp_path):
    done = fill(BOTH + 'truncate -s 5 "$2"/inner/*.idx || true\n')
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "c4-train.en_6_text_document.idx is absent or not of the published size" in done.stderr
    assert "DATA_DIR is not set" in fill("", DATA_DIR="").stderr


def test_a_failed_download_is_said(fill):
    done = fill("exit 3\n")
    assert done.returncode == 2 and "the downloader failed at data.uri; run this again" in done.stderr
