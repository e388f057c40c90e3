"""Runs the stock checker in this process, without isolation but fast enough for tests over many logs."""

import logging
import signal

from mlperf_logging.compliance_checker import mlp_compliance


class _TooLongError(Exception):
    pass


def _stop(*_):
    raise _TooLongError


def keep_rules(replace=setattr):
    """Lets the stock checker read each of its rule files once a process: most of its time goes into YAML."""
    load, kept = mlp_compliance.yaml.load, {}

    def cached(file, Loader):  # noqa: N803 (PyYAML's name)
        if file.name not in kept:
            kept[file.name] = load(file, Loader=Loader)
        return kept[file.name]

    replace(mlp_compliance.yaml, "load", cached)


def config(path, ruleset):
    """The rule file to begin with: v0.6 Minigo has one of its own, which its log does not select."""
    minigo = ruleset == "0.6.0" and "/minigo/" in str(path)
    return f"training_{ruleset}/{'minigo' if minigo else 'common'}.yaml"


def verdict(path, ruleset, seconds=20, config=None):
    """("pass" | "fail" | "crash", messages); its global queue is cleared first, as every caller must."""
    mlp_compliance.enqueued_configs.clear()
    checker = mlp_compliance.make_checker("training", ruleset, False, False)
    before, disabled = signal.signal(signal.SIGALRM, _stop), logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    signal.alarm(seconds)
    try:
        passed = checker.check_file(str(path), config or f"training_{ruleset}/common.yaml")
    except Exception as error:
        return "crash", [repr(error)]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        logging.disable(disabled)
    return "pass" if passed else "fail", [*checker.overwritable.values(), *checker.not_overwritable]
