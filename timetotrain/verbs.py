"""Lists the verbs of `timetotrain`, and the module that implements each. TensorFlow-free.

A verb's module provides one of two interfaces:

- `add_arguments(parser)` and `run(options) -> int`, which returns the exit status (`add_VERB_arguments` and `run_VERB`
  in a module of two verbs), or
- a separate command line: `main(argv) -> int` gets the words after the verb.

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
    "report": Verb("timelines, curves and scores; --follow shows a run", "timetotrain.report"),
    "compare": Verb("two runs side by side", "compliance.report.compare"),
    "package": Verb("build the submission of your results", "compliance.packaging.package"),
    "systems": Verb("list, show, detect and validate machines", "timetotrain.machines.command", ()),
    "plan": Verb("what a round admits, what its runs take and cost", "timetotrain.forecast.plan"),
    "forecast": Verb("how long a run takes on a machine, and which to rent", "timetotrain.forecast.forecast"),
}
