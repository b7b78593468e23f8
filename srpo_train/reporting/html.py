"""A report as one HTML file that needs nothing else, light or dark as the reader's system is."""

from __future__ import annotations

from srpo_envs.errors import MissingExtraError
from srpo_train.reporting.tables import Document, column_groups, plain


def to_html(document: Document) -> str:
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
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    return pages.get_template("report.html.jinja").render(document=document, column_groups=column_groups)
