"""The site: built without a warning or the network, it can be read, searched and followed in a browser."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import visiting
from doc_pages import ROOT

CONFIG = ROOT / "mkdocs.yml"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'srpo[docs]'")
    folder = tmp_path_factory.mktemp("site")
    build(CONFIG, folder)
    return folder


def build(config: Path, folder: Path) -> None:
    """Build as `make docs` does.

    Raises:
        Abort: there was a warning, such as a link or an anchor that leads nowhere.
    """
    import logging
    import os
    import warnings

    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    os.environ["NO_MKDOCS_2_WARNING"] = "1"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        settings = load_config(str(config), site_dir=str(folder), strict=True)
        logging.getLogger("mkdocs").setLevel(logging.WARNING)
        settings.plugins.on_startup(command="build", dirty=False)
        build(settings)
        settings.plugins.on_shutdown()


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served on this machine."""

    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    handler = functools.partial(Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
def test_every_page_is_built_and_nothing_is_fetched(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    assert "Unreleased" in (site / "changes.html").read_text(encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for path in site.rglob("*.html")]
    assert not [text for text in texts if "fonts.googleapis" in text or "unpkg.com" in text or "cdn." in text]
    assert "srpo_train.objective.surrogate" in (site / "api/objective.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_reader_gets_from_the_home_page_to_a_tutorial_and_finds_a_metric(address: str, scheme: str) -> None:
    with visiting(address + "index.html", scheme=scheme) as visit:
        page = visit.page
        page.get_by_role("link", name="First run").first.click()
        assert page.locator("h1").inner_text().startswith("First run")
        page.locator(".md-search__input").click()
        page.keyboard.type("zero_variance_groups")
        page.locator(".md-search-result__link").first.wait_for(timeout=20_000)
        assert "metrics.html" in page.locator(".md-search-result__link").first.get_attribute("href")
        assert visit.troubles == []


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["[x](nothing.md)", "[x](cli.md#nothing)", "[x](../nothing.py)"])
def test_a_link_that_leads_nowhere_fails_the_build(broken: str, tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'srpo[docs]'")
    from mkdocs.exceptions import Abort, PluginError

    (tmp_path / "docs").mkdir()
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n")
    (tmp_path / "docs/cli.md").write_text("# Here\n\n## There\n\n[fine](#there)\n")
    (tmp_path / "docs/index.md").write_text("# Home\n\n[fine](cli.md#there)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"site_name: x\nhooks: [{ROOT / 'scripts/site_pages.py'}]\nvalidation: {{links: {{anchors: warn}}}}\n"
        "nav: [index.md, cli.md, changes.md]\n"
    )
    build(config, tmp_path / "site")
    (tmp_path / "docs/index.md").write_text(f"# Home\n\n{broken}\n")
    with pytest.raises((Abort, PluginError)):
        build(config, tmp_path / "site")
