"""Every page is reachable: README and the site's navigation list them all, and links between files lead somewhere."""

from __future__ import annotations

import re

import pytest
import yaml
from doc_pages import PAGES, ROOT

_LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


def navigation() -> set[str]:
    """The pages of the site's navigation."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return set(re.findall(r"[\w/-]+\.md", str(yaml.load(text, Loader)["nav"])))


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_links_to_files_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```|`[^`\n]*`(?!\])", "", text, flags=re.MULTILINE | re.DOTALL)  # code has no links
    for path in _LINK.findall(text):
        assert (ROOT / page).parent.joinpath(path).exists(), f"{page}: {path}"


def test_every_page_is_in_the_navigation() -> None:
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert navigation() == pages | {"changes.md"}


def test_the_readme_leads_to_every_page_but_those_the_site_is_for() -> None:
    linked = set(_LINK.findall((ROOT / "README.md").read_text(encoding="utf-8")))
    missing = [page for page in PAGES if page not in linked and page != "README.md" and "docs/api/" not in page]
    assert missing == []
