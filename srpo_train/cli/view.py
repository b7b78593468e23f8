"""``srpo view``: look at runs in a browser, or in the terminal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from srpo_train.cli._text import shown

if TYPE_CHECKING:
    from srpo_train.viewer.server import ViewerServer


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs and evaluations, or folders of them; runs/ when left out.", show_default=False),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 8642, or a free one.", show_default=False)
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default answers this machine only.")
    ] = "127.0.0.1",
    opens_browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    is_terminal: Annotated[bool, typer.Option("--terminal", help="Look in this terminal, without a browser.")] = False,
    query: Annotated[
        str, typer.Option("--query", "-q", help="With --terminal: begin with this search, such as 'is:malformed'.")
    ] = "",
) -> None:
    """Look at runs: curves, episodes event by event, what was learned from each; live while they train.

    The page shows what is there and what comes. It changes nothing in a run, but for an index of its episodes in
    `.view/`, which can be deleted at any time.
    """
    roots = runs or [Path("runs")]
    if is_terminal:
        _view_in_terminal(roots, query)
        return
    from srpo_train.viewer.server import ViewerServer

    console = Console()
    server = ViewerServer(roots, host=host, port=port)
    _announce(console, server, host)
    if opens_browser:
        import webbrowser

        webbrowser.open(server.url)
    with contextlib.suppress(KeyboardInterrupt):  # the server may have taken it already, and ended
        server.run()
    console.print("closed")


def _announce(console: Console, server: ViewerServer, host: str) -> None:
    places = server.runs.catalogue.places()
    names = ", ".join(place.key for place in places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    console.print(shown(f"showing {names}"), soft_wrap=True)
    console.print(shown("open    ") + shown(server.url, "bold cyan"), soft_wrap=True)
    if host not in ("127.0.0.1", "localhost", "::1"):
        console.print(
            shown("warning: ", "bold yellow")
            + shown(f"whoever reaches {host} can read these runs; an ssh tunnel (ssh -L) needs no --host"),
            soft_wrap=True,
        )
    console.print(shown("Ctrl-C ends it", "dim"))


def _view_in_terminal(roots: list[Path], query: str) -> None:
    from srpo_envs.errors import MissingExtraError

    try:
        from srpo_train.viewer.terminal import TerminalViewer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("srpo"):
            raise
        raise MissingExtraError(error.name, "viewer") from error
    TerminalViewer(roots, query).run()
