"""The web application: a page, its files, and what it asks for as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles

from srpo_envs.errors import RecordError, UnknownIdError
from srpo_envs.records import Episode
from srpo_train.viewer.curves import Curves
from srpo_train.viewer.guard import Guard
from srpo_train.viewer.opened import UNREADABLE, OpenRun, OpenRuns
from srpo_train.viewer.runs import checkpoints, describe
from srpo_train.viewer.search import SORTS, find, label_counts, parse_query, task_ids
from srpo_train.viewer.text import visible, written

STATIC = Path(__file__).parent / "static"
"""The page and its files."""


def build_app(runs: OpenRuns, names: Sequence[str] = ()) -> FastAPI:
    """Return the web application over some runs.

    Args:
        runs: What is shown; followed while the application runs.
        names: Host names of the server, see `Guard`.
    """

    @contextlib.asynccontextmanager
    async def follow(app: FastAPI) -> AsyncIterator[None]:
        with runs:
            yield

    app = FastAPI(lifespan=follow, openapi_url=None, docs_url=None, redoc_url=None)
    app.add_middleware(Guard, names=tuple(names))
    for kind in UNREADABLE:
        app.add_exception_handler(kind, _tell)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    _add_run_routes(app, runs)
    _add_episode_routes(app, runs)
    return app


def _add_run_routes(app: FastAPI, runs: OpenRuns) -> None:
    @app.get("/api/runs")
    def list_runs() -> JSONResponse:
        shown = []
        for place in runs.catalogue.places():
            with contextlib.suppress(RecordError):  # deleted since it was listed
                shown.append(describe(place, runs[place.key].curves.last_step))
        return JSONResponse({"runs": shown})

    @app.get("/api/pulse")
    def pulse(run: Annotated[list[str], Query()]) -> JSONResponse:
        return JSONResponse({key: _pulse_of(runs, key) for key in run})

    @app.get("/api/metrics")
    def metrics(run: str) -> JSONResponse:
        curves = runs[run].curves
        return JSONResponse({**_progress_of(curves), "names": curves.names()})

    @app.get("/api/curves")
    def columns(run: str, name: Annotated[list[str], Query()], after: int = 0, epoch: int = -1) -> JSONResponse:
        curves = runs[run].curves
        start = after if epoch == curves.epoch else 0
        return JSONResponse({**_progress_of(curves), "after": start, **curves.columns(name, max(0, start))})


def _add_episode_routes(app: FastAPI, runs: OpenRuns) -> None:
    @app.get("/api/episodes")
    def episodes(
        run: str, q: str = "", sort: str = "newest", offset: int = 0, limit: int = 50, newest: int = 0
    ) -> JSONResponse:
        opened = runs.with_episodes(run)
        query = parse_query(q, opened.curves.alarm_steps())
        found = find(opened.index, query, sort=sort, offset=offset, limit=limit, newest=newest)
        rows = [{name: _shown(value) for name, value in row.items()} for row in found.rows]
        return JSONResponse({"total": found.total, "newest": found.newest, "rows": rows, **_pulse(opened)})

    @app.get("/api/facets")
    def facets(run: str) -> JSONResponse:
        opened = runs.with_episodes(run)
        alarms = {name: len(steps) for name, steps in opened.curves.alarm_steps().items()}
        counts = label_counts(opened.index)
        return JSONResponse({"labels": counts, "alarms": sorted(alarms.items()), "sorts": list(SORTS)})

    @app.get("/api/tasks")
    def tasks(run: str, beginning: str = "") -> JSONResponse:
        return JSONResponse({"tasks": task_ids(runs.with_episodes(run).index, beginning)})

    @app.get("/api/episode")
    def episode(run: str, id: str, file: str = "", credit: bool = False, checkpoint: int = -1) -> JSONResponse:
        opened = runs.with_episodes(run)
        file = file or opened.index.file_of(id)
        timeline = runs.timeline(run, id, file=file, credit=credit, step=checkpoint)
        known = {"run": run, "file": file, "checkpoints": checkpoints(opened.place), "kind": opened.place.kind}
        return JSONResponse({"timeline": asdict(timeline), **known})

    @app.get("/api/text")
    def text(run: str, id: str, event: int, part: str, number: int = 0, file: str = "") -> PlainTextResponse:
        whole = _part_of(runs.with_episodes(run).index.read(id, file), event, part, number)
        return PlainTextResponse(visible(whole), headers={"content-disposition": 'attachment; filename="text.txt"'})


def _tell(request: Request, error: Exception) -> JSONResponse:
    """Say what is wrong. A question without an answer is no failure: a browser's console is for what is broken."""
    status = 404 if isinstance(error, UnknownIdError) else 200
    return JSONResponse({"error": visible(str(error))}, status_code=status)


def _progress_of(curves: Curves) -> dict[str, Any]:
    return {
        "epoch": curves.epoch,
        "lines": curves.num_lines,
        "problem": visible(curves.problem),
        "alarms": [asdict(span) for span in curves.alarms()],
    }


def _pulse_of(runs: OpenRuns, key: str) -> dict[str, Any]:
    """The pulse of a run; of one that was deleted only that it was, for the others on the page go on."""
    try:
        return _pulse(runs[key])
    except RecordError as error:
        return {"gone": visible(str(error))}


def _pulse(run: OpenRun) -> dict[str, Any]:
    """What tells a page whether there is anything new."""
    found = run.index.progress if run.has_index else None
    return {
        "epoch": run.curves.epoch,
        "lines": run.curves.num_lines,
        "last_step": run.curves.last_step,
        "problem": visible(run.curves.problem),
        "index": asdict(found) if found else None,
    }


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _part_of(episode: Episode, event: int, part: str, number: int) -> str:
    """The whole of a text that a time line cut: ``text`` or ``prompt`` of a member, or the result of a ``call``.

    Raises:
        UnknownIdError: the episode has no such part.
        RecordError: there is no part of this kind.
    """
    if not 0 <= event < len(episode.events):
        raise UnknownIdError(f"episode {episode.episode_id!r} has no event {event}")
    found = episode.events[event]
    items: Sequence[Any] = found.tool_calls if part == "call" else found.members
    if not 0 <= number < len(items):
        raise UnknownIdError(f"event {found.event_id!r} has no {part} {number}")
    if part == "call":
        return written(items[number].result)
    if part in ("text", "prompt"):
        return str(getattr(items[number], part))
    raise RecordError(f"part {part!r}: expected text, prompt or call")
