"""Tests the completion of shells: verbs, presets, flags and fields, as bash completes them."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("shtab")
ROOT = pathlib.Path(__file__).resolve().parents[2]
# Completes the last of the script's arguments.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_timetotrain
echo "${COMPREPLY[*]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    code = (
        "import pathlib, sys, shtab; from timetotrain import completion\n"
        "for shell in completion.SHELLS:\n"
        "    text = shtab.complete(completion.whole_parser(), shell)\n"
        "    pathlib.Path(sys.argv[1], shell).write_text(text)\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT, check=True)
    return folder


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["ch"], {"check"}),
        (["run", "mas"], {"maskrcnn"}),
        (["run", "resnet", "--sys"], {"--system"}),
        (["run", "ptb", "--system", "cpu-ti"], {"cpu-tiny"}),
        (["run", "gnmt", "--config.decode.be"], {"--config.decode.beam_size"}),
        (["run", "resnet", "--config.optimizer.nesterov", "t"], {"true"}),
        (["systems", "det"], {"detect"}),
        (["check", "--stri"], {"--strict"}),
        (["completion", ""], {"bash", "zsh", "fish"}),
    ],
)
def test_bash_completes(scripts, words, wanted):
    command = ["bash", "-c", COMPLETE, "complete", scripts / "bash", "timetotrain", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) >= wanted
    assert all(word.startswith(words[-1]) for word in done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_script(scripts, shell):
    text = (scripts / shell).read_text()
    assert "config.optimizer.momentum" in text and "cpu-photos" in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    flag = "--no-execute" if shell == "fish" else "-n"
    subprocess.run([shell, flag, scripts / shell], check=True, env=os.environ)
