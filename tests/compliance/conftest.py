"""Makes a checkout that runs can be packaged from."""

import subprocess

import pytest

from compliance.packaging import package_output
from tests.compliance import result_logs


@pytest.fixture(scope="module")
def fast_stock_checker():
    """Makes the stock checkers fast for a whole module of tests."""
    from lab.bench.harness import stock_checker

    with pytest.MonkeyPatch.context() as patch:
        stock_checker.make_fast(patch.setattr)
        yield


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A checkout with the files that a run needs, and files that belong to no package."""
    root = tmp_path_factory.mktemp("source")
    files = {
        "LICENSE": "license\n", "pyproject.toml": "[project]\n", "common/__init__.py": "",
        "compliance/rules/0.7.0.json": "{}\n", "systems/dgx-1.json": "{}\n",
        "tools/requirements/dev.lock": "numpy\n", "tests/test_all.py": "assert True\n",
        "docs/notes.md": "notes\n",
    }  # fmt: skip
    files["llama31_8b/presets.py"] = "A = 1\n"  # The logs name it in config_filename.
    for benchmark in (*result_logs.CLOSED, "llama31_8b"):
        files |= {f"{benchmark}/config.py": "A = 1\n", f"{benchmark}/README.md": f"# {benchmark}\n"}
        files |= {
            f"{benchmark}/{script}": "#!/bin/sh\necho $SYSTEM $*\n" for script in package_output.SCRIPTS
        }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755 if name.endswith(".sh") else 0o644)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "as run"]):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null"]
        subprocess.run(["git", "-C", root, *identity, *command], check=True)
    (root / "resnet" / "untracked.py").write_text("not committed\n")
    return root
