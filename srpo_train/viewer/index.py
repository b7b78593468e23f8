"""An index of a run's stored episodes beside its log: small, made anew at need, and never ahead of what is on disk.

It is a SQLite file with a row for each episode (what lists show and filters ask for, and the bytes at which the
episode stands in the log), its labels (roles, event types, ...) and a full-text index of what was said. The episode
itself is always read from the log. Whatever happens to the file, it can be thrown away.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from srpo_envs.audit import episode_files
from srpo_envs.errors import RecordError, UnknownIdError
from srpo_envs.records import Episode, parse_episodes
from srpo_train.event_log import step_of
from srpo_train.viewer.marks import Mark
from srpo_train.viewer.scan import Damage, Facts, scan

logger = logging.getLogger(__name__)

INDEX_FILE = Path(".view") / "index.sqlite"
"""Where the index of a run lies, within the run's directory where that can be written."""

_FORMAT = 3
_BATCH = 1000

COLUMNS = {
    "episode_id": "TEXT",
    "task_id": "TEXT",
    "group_id": "TEXT",
    "question": "TEXT",
    "answer": "TEXT",
    "reward": "REAL",
    "penalty": "REAL",
    "correct": "INTEGER",
    "truncated": "INTEGER",
    "events": "INTEGER",
    "calls": "INTEGER",
    "malformed": "INTEGER",
    "tokens": "INTEGER",
    "tools": "INTEGER",
    "k": "INTEGER",
    "version": "INTEGER",
}
"""What is kept of an episode, by name, with its SQLite type."""

_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY, name TEXT UNIQUE, step INTEGER, size INTEGER, mtime INTEGER, inode INTEGER,
    offset INTEGER, digest TEXT, damaged INTEGER
);
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, step INTEGER, start INTEGER, end INTEGER,
    {", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())}
);
CREATE INDEX episodes_by_file ON episodes (file, start);
CREATE INDEX episodes_by_name ON episodes (episode_id);
CREATE INDEX episodes_by_task ON episodes (task_id);
CREATE INDEX episodes_by_reward ON episodes (reward);
CREATE INDEX episodes_by_step ON episodes (step, id);
CREATE TABLE labels (id INTEGER PRIMARY KEY, kind TEXT, value TEXT, UNIQUE (kind, value));
CREATE TABLE labelled (label INTEGER, episode INTEGER, PRIMARY KEY (label, episode)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (said, content='');
PRAGMA user_version = {_FORMAT};
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an index has come."""

    num_episodes: int
    """Episodes in it."""
    num_bytes: int
    """Bytes of the log it has read."""
    total_bytes: int
    """Bytes the log has."""
    num_damaged: int
    """Places in the log that are no episode and were passed over."""


class EpisodeIndex:
    """The index of one run or evaluation.

    Args:
        log_dir: Directory of the run or evaluation.
        path: The index; where omitted, beside the log, or in the user's cache where the log's directory is read-only.

    Raises:
        RecordError: there is no such directory.
    """

    def __init__(self, log_dir: Path, path: Path | None = None) -> None:
        self.log_dir = log_dir.resolve()
        self.path = (path or _place_for(self.log_dir)).absolute()
        self._lock = threading.Lock()
        self._progress = Progress(0, 0, 0, 0)
        self._labels: dict[tuple[str, str], int] = {}
        self._is_damaged = False
        self._open()

    @property
    def progress(self) -> Progress:
        """How far the last `update` has come, also while it is at work."""
        return self._progress

    @property
    def is_sound(self) -> bool:
        """Whether it can be asked as far as is known; if not, because somebody deleted it, `update` makes it anew."""
        return not self._is_damaged and self.path.is_file()

    def update(self) -> Progress:
        """Take in what the log has gained and let go of what it has lost; waits for one that is under way.

        An index that was deleted or damaged meanwhile is made anew.

        Raises:
            RecordError: the log's directory is gone.
            OSError: the log cannot be read, or the index not written.
            sqlite3.Error: the index cannot be written.
        """
        with self._lock:
            if not self.is_sound:
                logger.warning("%s: gone or damaged; it is made anew", self.path)
                self._remake()
            try:
                self._update()
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                logger.warning("%s: damaged (%s); it is made anew", self.path, error)
                self._remake()
                self._update()
        return self._progress

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for questions in the body; rows answer by name.

        Raises:
            RecordError: somebody deleted or damaged the index; the next `update` makes it anew.
        """
        try:
            with contextlib.closing(self._connect()) as found:
                found.row_factory = sqlite3.Row
                found.execute("PRAGMA query_only = 1")
                yield found
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self._is_damaged = True
            raise RecordError(
                f"{self.path}: the index was deleted or damaged ({error}); it is made anew from the log, ask again soon"
            ) from error

    def read(self, episode_id: str, file: str = "") -> Episode:
        """Return an episode from the log.

        Args:
            episode_id: Which.
            file: File of the log, where several hold an episode of this id; the newest when omitted.

        Raises:
            UnknownIdError: the index has no such episode.
            RecordError: the log no longer has it, or it is damaged.
        """
        with self.reading() as connection:
            row = connection.execute(
                "SELECT f.name, e.start, e.end FROM episodes e JOIN files f ON f.id = e.file "
                "WHERE e.episode_id = ? AND (? = '' OR f.name = ?) ORDER BY e.id DESC",
                (episode_id, file, file),
            ).fetchone()
        if row is None:
            raise UnknownIdError(f"{self.log_dir.name}: no stored episode {episode_id!r}{file and ' in ' + file}")
        return self._read(row["name"], row["start"], row["end"])

    def episodes_of(self, file: str) -> list[Episode]:
        """Return every episode of one file of the log, as far as it is indexed.

        Raises:
            RecordError: the file is damaged or gone.
        """
        with self.reading() as connection:
            rows = connection.execute(
                "SELECT e.start, e.end FROM episodes e JOIN files f ON f.id = e.file WHERE f.name = ? ORDER BY e.start",
                (file,),
            ).fetchall()
        return [self._read(file, row["start"], row["end"]) for row in rows]

    def file_of(self, episode_id: str) -> str:
        """Return the file of the log that holds an episode; the newest of several.

        Raises:
            UnknownIdError: the index has no such episode.
        """
        with self.reading() as connection:
            row = connection.execute(
                "SELECT f.name FROM episodes e JOIN files f ON f.id = e.file WHERE e.episode_id = ? ORDER BY e.id DESC",
                (episode_id,),
            ).fetchone()
        if row is None:
            raise UnknownIdError(f"{self.log_dir.name}: no stored episode {episode_id!r}")
        return str(row["name"])

    def _read(self, name: str, start: int, end: int) -> Episode:
        path = self.log_dir / name
        try:
            with path.open("rb") as file:
                file.seek(start)
                lines = file.read(end - start).splitlines(keepends=True)
        except OSError as error:
            raise RecordError(f"{path}: the log no longer holds this episode ({error})") from error
        found = list(parse_episodes(lines, f"{path} from byte {start}"))
        if len(found) != 1:
            raise RecordError(f"{path} from byte {start}: the log has changed; the episode is no longer there")
        return found[0]

    def _open(self) -> None:
        self._make_folder()
        try:
            with contextlib.closing(self._connect()) as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                is_current = version == _FORMAT
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            is_current = False
        if not is_current:
            self._remake()
        with contextlib.closing(self._connect()) as connection:
            self._measure(connection, 0)

    def _make_folder(self) -> None:
        """Make the folder of the index, but never the directory of a run that was deleted."""
        if not self.log_dir.is_dir():
            raise RecordError(f"{self.log_dir}: there is no such directory; it was deleted or moved")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _remake(self) -> None:
        self._make_folder()
        for suffix in ("", "-wal", "-shm", "-journal"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        with contextlib.closing(self._connect(mode="rwc")) as connection:
            connection.executescript(_SCHEMA)
        self._is_damaged = False

    def _connect(self, mode: str = "rw") -> sqlite3.Connection:
        """Open the index; only ``rwc`` makes the file."""
        connection = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=30, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # a power cut may cost the index, which is made anew
        except BaseException:
            connection.close()
            raise
        return connection

    def _update(self) -> None:
        with contextlib.closing(self._connect()) as connection:
            self._labels = {(kind, value): label for label, kind, value in connection.execute("SELECT * FROM labels")}
            known = {row[0]: row[1:] for row in connection.execute("SELECT name, id, size, mtime, inode FROM files")}
            files = [(path, path.stat()) for path in self._files()]
            self._measure(connection, sum(stat.st_size for _, stat in files))
            for path, stat in reversed(files):  # the newest first, for they are looked at first
                seen = known.pop(path.relative_to(self.log_dir).as_posix(), None)
                if seen is None or seen[1:] != (stat.st_size, stat.st_mtime_ns, stat.st_ino):
                    self._take_in(connection, path, stat)
            for file, *_ in known.values():
                _forget(connection, file)
            self._measure(connection, sum(stat.st_size for _, stat in files))

    def _files(self) -> list[Path]:
        """The files of the log; a link that leads out of its directory is not followed."""
        return [path for path in episode_files(self.log_dir) if path.resolve().is_relative_to(self.log_dir)]

    def _take_in(self, connection: sqlite3.Connection, path: Path, stat: os.stat_result) -> None:
        name = path.relative_to(self.log_dir).as_posix()
        file, mark = self._entry(connection, name, path)
        found = scan(path, mark.offset)
        while batch := list(itertools.islice(found, _BATCH)):
            mark = Mark.at(path, batch[-1].end)
            with _transaction(connection):
                self._add(connection, file, step_of(name), [item for item in batch if isinstance(item, Facts)])
                connection.execute(
                    "UPDATE files SET offset = ?, digest = ?, damaged = damaged + ? WHERE id = ?",
                    (mark.offset, mark.digest, sum(isinstance(item, Damage) for item in batch), file),
                )
            self._measure(connection, self._progress.total_bytes)
        connection.execute("UPDATE files SET size = ?, mtime = ? WHERE id = ?", (stat.st_size, stat.st_mtime_ns, file))

    def _entry(self, connection: sqlite3.Connection, name: str, path: Path) -> tuple[int, Mark]:
        """Return a file's number and how far it was read; a file that is not the one that was read begins anew."""
        row = connection.execute("SELECT id, inode, offset, digest FROM files WHERE name = ?", (name,)).fetchone()
        if row and (mark := Mark(*row[1:])).holds(path):
            return row[0], mark
        if row:
            _forget(connection, row[0])
        mark = Mark.at(path, 0)
        cursor = connection.execute(
            "INSERT INTO files (name, step, inode, offset, digest, damaged) VALUES (?, ?, ?, ?, ?, 0)",
            (name, step_of(name), mark.inode, mark.offset, mark.digest),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid, mark

    def _add(self, connection: sqlite3.Connection, file: int, step: int | None, found: list[Facts]) -> None:
        (last,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
        numbered = list(enumerate(found, start=last + 1))
        places = ", ".join("?" * (5 + len(COLUMNS)))
        connection.executemany(
            f"INSERT INTO episodes (id, file, step, start, end, {', '.join(COLUMNS)}) VALUES ({places})",
            [
                (number, file, step, facts.start, facts.end, *(facts.columns[name] for name in COLUMNS))
                for number, facts in numbered
            ],
        )
        connection.executemany(
            "INSERT INTO words (rowid, said) VALUES (?, ?)", [(number, facts.words) for number, facts in numbered]
        )
        connection.executemany(
            "INSERT OR IGNORE INTO labelled VALUES (?, ?)",
            [(self._label(connection, *label), number) for number, facts in numbered for label in facts.labels],
        )

    def _label(self, connection: sqlite3.Connection, kind: str, value: str) -> int:
        if (kind, value) not in self._labels:
            cursor = connection.execute("INSERT INTO labels (kind, value) VALUES (?, ?)", (kind, value))
            assert cursor.lastrowid is not None
            self._labels[kind, value] = cursor.lastrowid
        return self._labels[kind, value]

    def _measure(self, connection: sqlite3.Connection, total_bytes: int) -> None:
        (num_episodes,) = connection.execute("SELECT count(*) FROM episodes").fetchone()
        num_bytes, num_damaged = connection.execute(
            "SELECT coalesce(sum(offset), 0), coalesce(sum(damaged), 0) FROM files"
        ).fetchone()
        self._progress = Progress(num_episodes, num_bytes, total_bytes, num_damaged)


_DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,  # also said of a file that was deleted under a connection
    sqlite3.SQLITE_CONSTRAINT,
)


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether another file would do better: not where a question is too long, or somebody else writes."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest is detail
    return code in _DAMAGE or (code == sqlite3.SQLITE_ERROR and "no such table" in str(error))


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _forget(connection: sqlite3.Connection, file: int) -> None:
    """Let go of a file's episodes. Their words stay where they are: no later episode has their numbers."""
    with _transaction(connection):
        connection.execute("DELETE FROM labelled WHERE episode IN (SELECT id FROM episodes WHERE file = ?)", (file,))
        connection.execute("DELETE FROM episodes WHERE file = ?", (file,))
        connection.execute("DELETE FROM files WHERE id = ?", (file,))


def _place_for(log_dir: Path) -> Path:
    beside = log_dir / INDEX_FILE
    try:
        beside.parent.mkdir(exist_ok=True)
        if os.access(beside.parent, os.W_OK):
            return beside
    except OSError as error:
        logger.info("%s: the index goes to the cache (%s)", log_dir, error)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.blake2b(os.fsencode(log_dir), digest_size=8).hexdigest()
    return cache / "srpo" / "view" / f"{log_dir.name}-{name}.sqlite"
