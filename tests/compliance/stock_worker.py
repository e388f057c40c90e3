"""Runs the stock compliance checker on one log; started by stock.py in a process of its own, never imported.

`python -I stock_worker.py LOG RULESET MEMORY_BYTES CPU_SECONDS`, one JSON line on standard output:
{"verdict": "pass" | "fail" | "crash", "messages": [...], "warnings": [...]}.
"""

import json
import logging
import os
import resource
import sys

_MAX_MESSAGES, _MAX_LENGTH = 200, 1500


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (bound, bound))


def _run(path: str, ruleset: str) -> dict:
    from mlperf_logging.compliance_checker import mlp_compliance

    directory = os.path.dirname(os.path.abspath(mlp_compliance.__file__))
    known = set()
    for version in mlp_compliance.rule_choices():
        folder = f"training_{version}"
        if os.path.isdir(os.path.join(directory, folder)):
            known.update(f"{folder}/{name}" for name in os.listdir(os.path.join(directory, folder)))
    seen = set()

    def enqueue(config: str) -> None:
        # The stock function takes any path a log's value leads to, any number of times.
        if config not in known:
            raise ValueError(f"no such rules: {config[:100]!r}")
        if config not in seen:
            seen.add(config)
            mlp_compliance.enqueued_configs.append(config)

    mlp_compliance.enqueue_config = enqueue
    checker = mlp_compliance.make_checker("training", ruleset, quiet=False, werror=False)
    try:
        verdict = "pass" if checker.check_file(path, f"training_{ruleset}/common.yaml") else "fail"
        messages = [*checker.overwritable.values(), *checker.not_overwritable]
    except Exception as error:
        verdict, messages = "crash", [f"{type(error).__name__}: {error}"]
    return {"verdict": verdict, "messages": messages, "warnings": list(checker.warnings.values())}


def main() -> None:
    path, ruleset, memory, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    _limit(resource.RLIMIT_AS, memory)
    _limit(resource.RLIMIT_CPU, seconds)
    _limit(resource.RLIMIT_FSIZE, 0)  # it writes nothing; whatever a rule file does, no file grows
    _limit(resource.RLIMIT_CORE, 0)
    logging.disable(logging.CRITICAL)
    answer = _run(path, ruleset)
    for name in ("messages", "warnings"):
        answer[name] = [text[:_MAX_LENGTH] for text in answer[name][:_MAX_MESSAGES]]
    print(json.dumps(answer))


main()
