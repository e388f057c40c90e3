"""Tests the command line `timetotrain`: its verbs, help, spelling hints, and statuses."""

import pathlib
import subprocess
import sys
import types

import pytest

import timetotrain
from common.config import benchmarks
from common.errors import Parser, UserError
from timetotrain import cli
from timetotrain.verbs import VERBS, Verb

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def verb(monkeypatch):
    """Adds a verb `try` with a module of its own; returns the module."""
    module = types.ModuleType("timetotrain.try_me")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(VERBS, "try", Verb("try it", module.__name__))
    return module


def test_a_module_s_verb_gets_its_parser_and_its_options(verb, capsys):
    verb.add_arguments = lambda parser: parser.add_argument("--number", type=int)
    verb.run = lambda options: options.number
    assert cli.main(["try", "--number=7"]) == 7
    assert cli.main(["try", "--numbr=7"]) == 2
    error = "error: unrecognized arguments: --numbr=7 (did you mean --number?); see timetotrain try --help\n"
    assert capsys.readouterr().err == error


def test_a_command_line_gets_the_words_behind_the_verb(verb, monkeypatch):
    monkeypatch.setitem(VERBS, "try", Verb("try it", verb.__name__, ("first",)))
    words = []
    verb.main = lambda argv: words.append(argv) or 5
    assert cli.main(["try", "second", "--third"]) == 5
    assert words == [["first", "second", "--third"]]


def test_an_error_is_a_line_and_its_status(verb, capsys):
    def run(options):
        raise UserError("no such thing", 3)

    verb.add_arguments, verb.run = lambda parser: None, run
    assert cli.main(["try"]) == 3
    assert capsys.readouterr().err == "error: no such thing\n"


def test_a_missing_module_is_said(monkeypatch, capsys):
    monkeypatch.setitem(VERBS, "try", Verb("try it", "timetotrain.no_such"))
    assert cli.main(["try"]) == 2
    assert "timetotrain try: not part of this installation" in capsys.readouterr().err


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("words", [["--nothing-like-it=1"], ["mnist", "--nothing-like-it"]])
def test_wrong_usage_of_any_verb_is_one_line_without_the_usage(name, words, capsys):
    assert cli.main([name, *words]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("error: ") and output.err.count("\n") == 1 and not output.out
    assert "usage" not in output.err


def test_an_unknown_verb_gets_near_names(capsys):
    assert cli.main(["chek"]) == 2
    assert "did you mean check" in capsys.readouterr().err


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"timetotrain {timetotrain.__version__}\n"


def test_the_overview_names_every_verb_and_benchmark(capsys):
    assert cli.main(["--help"]) == 0
    words = capsys.readouterr().out.replace(",", "").split()
    assert set(words) >= {*VERBS, *benchmarks.NAMES}


def test_a_closed_pipe_is_no_traceback():
    code = "import sys; from timetotrain.cli import main; sys.exit(main(['systems', 'list']))"
    done = subprocess.run(
        f'"{sys.executable}" -c "{code}" | true', shell=True, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_dashes_within_a_flag_are_underscores():
    parser = Parser(prog="x")
    parser.add_argument("--data_dir")
    parser.add_argument("--full-tree", action="store_true")
    parser.add_argument("rest", nargs="*")
    arguments = parser.parse_args(["--data-dir=a-b", "--full-tree", "--", "--data-dir"])
    assert vars(arguments) == {"data_dir": "a-b", "full_tree": True, "rest": ["--data-dir"]}
    with pytest.raises(UserError, match="--data-dri"):
        parser.parse_args(["--data-dri=x"])
