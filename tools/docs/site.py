"""Makes the site of every Markdown file of the repository and the files that they link to: the hook of mkdocs.yml.

Pages keep their paths from the repository's root, so that a link that holds on disk holds in the site.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # mkdocs runs hooks as files.

from tools.docs import markdown  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Replaces the files of docs/ by those of the repository; the theme's files stay."""
    pages = markdown.tracked("*.md")
    found = {markdown.target(name, link) for name in pages for link in markdown.page(name).links}
    linked = {name for name, _ in filter(None, found) if (markdown.ROOT / name).is_file()}
    ours = [
        File(name, str(markdown.ROOT), config.site_dir, config.use_directory_urls)
        for name in sorted(linked.union(pages))
    ]
    return Files([*ours, *(file for file in files if file.src_dir != config.docs_dir)])
