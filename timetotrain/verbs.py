"""Lists the verbs of `timetotrain`, and which module answers each. TensorFlow-free.

A verb is one of two things:

- a module with `add_arguments(parser)` and `run(options) -> int`, which returns the exit status, or
- an existing command line, `main(argv) -> int`, which gets the words behind the verb.

A module is imported when its verb is called, and only then.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
      about: what it does, in a line.
      module: the module, named as in a checkout: "timetotrain.data", "common.search.__main__".
      words: None where the module has `add_arguments` and `run`; else its `main` gets these words first.
      example: words that follow the verb, as the overview shows them.
    """

    about: str
    module: str
    words: tuple[str, ...] | None = None
    example: str = ""


def _compliance(about: str, name: str, example: str) -> Verb:
    return Verb(about, "compliance.cli", (name,), example)


VERBS = {
    "run": Verb("train a benchmark, and time it", "timetotrain.run", example="BENCHMARK --system=NAME"),
    "data": Verb("make records of your own files", "timetotrain.data", example="BENCHMARK FOLDER OUT"),
    "predict": Verb("apply a trained model to files", "timetotrain.predict", example="MODEL FILES"),
    "export": Verb(
        "write a trained model for other programs", "timetotrain.export", example="CHECKPOINT OUT"
    ),
    "search": Verb(
        "look for good rates, batches or any field",
        "common.search.__main__",
        (),
        "BENCHMARK --system=NAME --data-dir=DIR --space FIELD=VALUES",
    ),
    "study": Verb("run a study on real data", "studies.__main__", (), "NAME"),
    "launch": Verb(
        "start a command in several processes", "common.launch.__main__", (), "--processes=N -- COMMAND"
    ),
    "check": _compliance("check logs, results and submissions", "check", "FILES"),
    "explain": _compliance("explain a rule and how to meet it", "explain", "RULE"),
    "rules": _compliance("print the keys that a log must have", "rules", "BENCHMARK DIVISION"),
    "scores": _compliance("compute scores from results", "scores", "FOLDER"),
    "report": _compliance("one page with timelines, curves and scores", "report", "FOLDER -o PAGE"),
    "compare": _compliance("two runs or systems side by side", "compare", "ONE OTHER"),
    "package": _compliance("build the submission of your results", "package", "RESULTS -o FOLDER"),
    "systems": Verb(
        "list, show, detect and validate machines", "systems.__main__", (), "list | show | detect | validate"
    ),
    "forecast": Verb(
        "how long a run takes on a machine that you lack",
        "systems.__main__",
        ("predict",),
        "BENCHMARK --system=NAME",
    ),
    "completion": Verb(
        "print the completion of a shell", "timetotrain.completion", example="bash | zsh | fish"
    ),
}
