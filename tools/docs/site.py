"""Hook for mkdocs.yml: builds the site from the repository's Markdown files, the files they link to, and built pages.

Pages keep their paths from the repository's root, so a link that works on disk also works on the site.
"""

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # mkdocs runs hooks as files.

from tools.docs import built, markdown  # noqa: E402


def on_files(files: Files, config: Any) -> Files:
    """Replaces the files of docs/ with the repository's; the theme's files stay."""
    pages = markdown.tracked("*.md")
    targets = {markdown.target(name, link) for name in pages for link in markdown.page(name).links}
    linked = {name for name, _ in filter(None, targets) if (markdown.ROOT / name).is_file()}
    ours = [
        File(name, str(markdown.ROOT), config.site_dir, config.use_directory_urls)
        for name in sorted(linked.union(pages))
    ]
    generated = [File.generated(config, path, content=text) for path, text in built.render().items()]
    return Files([*ours, *generated, *(file for file in files if file.src_dir != config.docs_dir)])
