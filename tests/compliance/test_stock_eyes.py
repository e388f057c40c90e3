"""Property test: a folder with damaged logs is never a go where the stock package checker refuses it or breaks.

Made logs, and published ones of v6.0 where they are. TTT_FUZZ=full tries 3,000 folders of each; without it 60 and 8.
"""

import json
import random
import shutil
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compliance.findings import ERROR
from compliance.submission.tree import judge_tree
from compliance.verdict import GO, NO_GO
from lab.bench.harness import stock_checker
from tests.compliance import llama_logs, published_logs
from tests.compliance.test_fuzz import FULL, mutate_line, mutate_log

# Why ours refuses a folder that the stock tools take: rules, or beginnings of their names (compliance-differences.md).
HARDER = (
    "line-", "run.reversed", "init.reversed", "run_stop.status", "run_stop.target-after", "eval_accuracy.", "tree.seed",
    "tree.rcp", "tree.score", "tree.benchmark", "tree.division", "submission_", "not-checked", "tree.stock",
)  # fmt: skip
SEEN = {}  # counts of each base, for who wants them
PUBLISHED = {
    "AMD": "MI350X_EPYC_9575F_primus/llama2_70b_lora", "MiTAC": "MI325X_1node/llama31_8b",
    "GigaComputing": "G894-SD3-AAX7_hugectr/dlrm_dcnv2",
}  # fmt: skip


def damaged(texts, draw):
    """Ten logs of which one or two have faults; also halves of lines and other text with the marker at the end."""
    texts = list(texts)
    for at in draw.sample(range(len(texts)), draw.choice([1, 1, 1, 2])):
        lines = mutate_log(texts[at].splitlines(), draw)
        if draw.random() < 0.4:
            odd = draw.choice(
                [":::MLLOG in a sentence", mutate_line(draw.choice(lines), draw), "{}", lines[-1][:70]]
            )
            lines.insert(draw.randrange(len(lines) + 1), odd)
        texts[at] = "\n".join(lines) + "\n"
    return texts


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    org = tmp_path_factory.mktemp("training_results_v5.0") / "Other_Lab"
    return llama_logs.tree(org, code="implementations/nemo")


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request, tmp_path_factory):
    """A published submitter's folder with one folder of runs; its description is ours where the subset has none."""
    source, folder = published_logs.folder() / "v6.0" / request.param, PUBLISHED[request.param]
    org = tmp_path_factory.mktemp("training_results_v6.0") / request.param
    shutil.copytree(source / "results" / folder, org / "results" / folder)
    system, benchmark = folder.split("/")
    (org / "systems").mkdir()
    description = llama_logs.description(submitter=org.name, system_name=system)
    (org / "systems" / f"{system}.json").write_text(json.dumps(description))
    (llama_logs.write_code(org / "benchmarks" / benchmark / "implementations" / "x") / ".gitignore").unlink()
    return org


def compared(org, ruleset, seed):
    """Damages copies of the logs of a folder, and asks both sides."""
    pytest.importorskip("mlperf_logging.package_checker.package_checker")
    (place,) = org.glob("results/*/*")
    sound = {path: path.read_bytes() for path in sorted(place.glob("result_*.txt"))}
    patch = pytest.MonkeyPatch()
    stock_checker.make_fast(patch.setattr)
    texts = [text.decode("latin-1") for text in sound.values()]
    try:
        for path, text in zip(sound, damaged(texts, random.Random(seed))):
            path.write_text(text, encoding="utf-8", errors="surrogatepass")
        ours = judge_tree(org, ruleset)
        from mlperf_logging.compliance_checker import mlp_compliance

        mlp_compliance.enqueued_configs.clear()
        theirs = stock_checker.package(org, ruleset, frozenset())
    finally:
        patch.undo()
        (place / "scaling.json").unlink(missing_ok=True)
        for path, text in sound.items():
            path.write_bytes(text)
    answer, counts = ours.verdict.answer, SEEN.setdefault(org.name, Counter())
    softer, harder = bool(theirs) and answer == GO, not theirs and answer == NO_GO
    counts.update(["tried", "softer" if softer else "harder" if harder else "equal"])
    assert not softer, (theirs, seed)
    if harder:
        rules = {one.rule for one in ours.findings if one.severity == ERROR}
        rules |= {one.rule for log in ours.logs for one in log.findings if one.severity == ERROR}
        assert any(rule.startswith(HARDER) for rule in rules), (rules, seed)


_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(
    max_examples=3000 if FULL else 60, deadline=None, derandomize=not FULL, suppress_health_check=_CHECKS
)
@given(seed=st.integers(0, 2**32))
def test_ours_is_never_softer_than_the_stock_package_checker(base, seed):
    compared(base, "5.0.0", seed)


@settings(
    max_examples=3000 if FULL else 8, deadline=None, derandomize=not FULL, suppress_health_check=_CHECKS
)
@given(seed=st.integers(0, 2**32))
def test_ours_is_never_softer_on_published_logs(published, seed):
    compared(published, "6.0.0", seed)


def test_sound_folders_get_one_verdict(base, published):
    """Else the property would say nothing."""
    for org, ruleset in ((base, "5.0.0"), (published, "6.0.0")):
        assert judge_tree(org, ruleset).verdict.answer == GO
        assert stock_checker.package(org, ruleset, frozenset()) == []
