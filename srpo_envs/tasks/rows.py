"""Rows of a data set: local JSON, JSON Lines and Parquet files, or a hub id read through `datasets`."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from srpo_envs.errors import DatasetError, MissingExtraError

Row = dict[str, Any]


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """Return the rows of a local file, in order.

    Args:
        path: ``.json`` (a list of objects, or an object holding exactly one such list), ``.jsonl``, both also with
            ``.gz``, or ``.parquet``.

    Raises:
        DatasetError: the file is missing, its format is unknown, or a row is damaged; names file and line.
        MissingExtraError: a Parquet file and no pyarrow.
    """
    file = Path(path)
    if not file.is_file():
        raise DatasetError(f"no data file at {str(file)!r}; give the path of a .json, .jsonl or .parquet file")
    suffixes = [suffix.lower() for suffix in file.suffixes]
    kind = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    readers = {".json": _read_json, ".jsonl": _read_json_lines, ".parquet": _read_parquet}
    if kind not in readers:
        raise DatasetError(f"{str(file)!r}: unknown format {kind!r}; expected one of {', '.join(readers)}")
    return readers[kind](file)


def read_hub_rows(hub_id: str, config: str | None, split: str) -> list[Row]:
    """Return the rows of one split of a hub data set, downloaded or from the local cache.

    Raises:
        MissingExtraError: `datasets` is not installed.
        DatasetError: it cannot be loaded.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "data") from error
    try:
        loaded = datasets.load_dataset(hub_id, config, split=split)
    except Exception as error:  # the library raises whatever its file systems and HTTP clients raise
        where = f"{hub_id!r}" + (f", config {config!r}" if config else "") + f", split {split!r}"
        raise DatasetError(
            f"cannot load {where} from the hub ({type(error).__name__}: {error}); "
            f"check the network, or download it once and give path="
        ) from error
    return [dict(row) for row in loaded]


def _read_text(file: Path) -> str:
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix.lower() == ".gz" else file.read_bytes()
        return data.decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DatasetError(f"{str(file)!r} cannot be read: {error}") from error


def _read_json(file: Path) -> list[Row]:
    try:
        content = json.loads(_read_text(file))
    except json.JSONDecodeError as error:
        raise DatasetError(f"{str(file)!r}: not JSON ({error}); was the download cut short?") from error
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if not isinstance(content, list):
        raise DatasetError(f"{str(file)!r}: expected a list of objects, got {type(content).__name__}")
    return [_as_row(row, f"{str(file)!r}, row {number}") for number, row in enumerate(content, start=1)]


def _read_json_lines(file: Path) -> list[Row]:
    rows = []
    for number, line in enumerate(_read_text(file).split("\n"), start=1):  # splitlines would cut at U+2028 in a string
        if not line.strip():
            continue
        try:
            rows.append(_as_row(json.loads(line), f"{str(file)!r}, line {number}"))
        except json.JSONDecodeError as error:
            raise DatasetError(f"{str(file)!r}, line {number}: not JSON ({error}); was the file cut short?") from error
    return rows


def _read_parquet(file: Path) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtraError("pyarrow", "data") from error
    try:
        rows: list[Row] = pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DatasetError(f"{str(file)!r}: not a Parquet file ({error})") from error
    return rows


def _as_row(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise DatasetError(f"{where}: expected an object, got {type(row).__name__}")
    return row
