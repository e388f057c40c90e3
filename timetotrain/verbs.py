"""Lists the verbs of `timetotrain`, and the module that implements each. TensorFlow-free.

A verb's module provides one of two interfaces:

- `add_arguments(parser)` and `run(options) -> int`, which returns the exit status (`add_VERB_arguments` and `run_VERB`
  in a module of two verbs), or
- a separate command line: `main(argv) -> int` gets the words after the verb, and `parser(*words)` returns the verb's
  parser, for completion.

A verb's module is imported only when the verb is called.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verb:
    """One verb.

    Attributes:
      about: one line that says what it does.
      module: the module's name as in a checkout: "timetotrain.use.data", "timetotrain.search.__main__".
      words: None if the module has `add_arguments` and `run`; otherwise its `main` gets these words first.
    """

    about: str
    module: str
    words: tuple[str, ...] | None = None


VERBS = {
    "run": Verb("train a benchmark, and time it", "timetotrain.run.command", ()),
    "data": Verb("make records of your own files", "timetotrain.use.data"),
    "weights": Verb("fetch public weights to start from", "timetotrain.use.weights"),
    "predict": Verb("apply a trained model to files", "timetotrain.use.predict"),
    "export": Verb("write a trained model for other programs", "timetotrain.use.export"),
    "search": Verb("look for good rates, batches or any field", "timetotrain.search.__main__", ()),
    "study": Verb("run a study on real data", "lab.studies.__main__", ()),
    "launch": Verb("start a command in several processes", "timetotrain.launch.__main__", ()),
    "check": Verb("check logs, results and submissions", "compliance.command"),
    "explain": Verb("explain a rule and how to meet it", "compliance.explain"),
    "rules": Verb("print the keys that a log must have", "compliance.explain"),
    "scores": Verb("compute scores from results", "compliance.submission.cli_scores"),
    "accept": Verb("will a submission be accepted? also while runs go on", "compliance.acceptance.command"),
    "report": Verb("timelines, curves and scores; --serve follows a run", "timetotrain.report"),
    "compare": Verb("two runs side by side", "compliance.report.compare"),
    "borrow": Verb("which hyperparameters may be taken over after the deadline", "compliance.changes.borrow"),
    "diff": Verb(
        "two submissions, or one sent again: what changed, and what may", "compliance.changes.difference"
    ),
    "settings": Verb(
        "settings in logs next to the configuration files that the logs name", "compliance.code.settings"
    ),
    "power": Verb("the energy of runs, by the rules and by the stock tool", "compliance.power.command"),
    "review": Verb("a round: uploads merged, all verdicts, scores and points", "compliance.review.command"),
    "why": Verb("why one run takes longer than another, term by term", "timetotrain.forecast.why"),
    "package": Verb("build the submission of your results", "compliance.packaging.package"),
    "systems": Verb("list, show, detect and validate machines", "timetotrain.forecast.cli", ()),
    "forecast": Verb("how long a run takes on a machine that you lack", "timetotrain.forecast.forecast"),
    "rent": Verb("which machines to rent for a run, by cost, time or energy", "timetotrain.forecast.rent"),
    "completion": Verb("print the completion of a shell", "timetotrain.completion"),
}
