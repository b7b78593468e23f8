"""What the documentation's site needs beside docs/: the list of changes, and links that lead out of docs/.

In the tree such links are right; on the site there is nothing at their end. They become the name of what they lead to,
and one that leads nowhere in the tree fails the build. mkdocs calls the functions here by their names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_CHANGES = "changes.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the list of changes, which lies beside docs/."""
    from mkdocs.structure.files import File

    text = (Path(config.config_file_path).parent / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, _CHANGES, content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Turn links that lead out of docs/ into names."""
    docs = Path(config.docs_dir)
    here = (docs / page.file.src_uri).parent if page.file.src_uri != _CHANGES else docs
    return _LINK.sub(lambda link: _inside(link, here, docs), markdown)


def _inside(link: re.Match[str], here: Path, docs: Path) -> str:
    path = link["path"]
    if "://" in path or path.startswith("mailto:"):
        return link[0]
    target = (here / path).resolve()
    if target.is_relative_to(docs):
        return link[0]
    from mkdocs.exceptions import PluginError

    if not target.exists():
        raise PluginError(f"{here}: {link[0]} leads to nothing")
    return _written(link["text"], target, docs.parent)


def _written(text: str, target: Path, root: Path) -> str:
    name = target.relative_to(root).as_posix()
    return text if text.strip("`") in (name, target.name, name + "/") else f"{text} (`{name}`)"
