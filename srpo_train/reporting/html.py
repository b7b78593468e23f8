"""A report as one HTML file that needs nothing else, light or dark as the reader's system is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from srpo_envs.errors import MissingExtraError
from srpo_train.reporting.svg import HEIGHT, WIDTH, draw
from srpo_train.reporting.tables import column_groups
from srpo_train.viewer.text import visible

if TYPE_CHECKING:
    from srpo_train.reporting.page import Page


def to_html(page: Page) -> str:
    """Return a report as one HTML page; no text in it can become markup, and the page may load and run nothing.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("jinja2", "train") from error
    pages = jinja2.Environment(
        loader=jinja2.PackageLoader("srpo_train.reporting", "data"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    helpers = {"column_groups": column_groups, "draw": draw, "width": WIDTH, "height": HEIGHT}
    return pages.get_template("report.html.jinja").render(page=page, **helpers)


def _shown(value: Any) -> Any:
    """A text with nothing hidden in it; what is markup already has another type."""
    return visible(value) if type(value) is str else value
