"""The file of tuned plans, which `vb.autotune` writes and `auto` reads when a program is lowered.

It is JSON: `entries` by (device, catalogue, kind of arithmetic, digest of the shapes), each with the name of the
fastest planner. The times of all candidates are there too, for people to read.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from jax_vbgemm._src.planner.tables.catalogue import Catalogue
from jax_vbgemm._src.planner.tables.device import DeviceSpec
from jax_vbgemm._src.problem import Problem

VARIABLE = "VBGEMM_CACHE"
OFF = "off"
_VERSION = 1


def cache_file() -> Path | None:
    """The path of the file: that of VBGEMM_CACHE, None if that is "off", by default one in the user's cache
    folder."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named.lower() == OFF else Path(named).expanduser()
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "jax_vbgemm" / "autotune.json"


def with_arithmetic(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems that have arithmetic and therefore reach a kernel."""
    return tuple(p for p in problems if p.m and p.n and p.k and p.batch)


def key_of(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> str:
    """The key of an entry. Problems without arithmetic don't count."""
    shapes = [
        (p.m, p.n, p.k, p.batch, p.transpose_a, p.transpose_b, *([True] if p.symmetric else []))
        for p in with_arithmetic(problems)
    ]
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:32]
    # The note distinguishes devices that use the same entry of the device table.
    name = " ".join(filter(None, (device.name, f"{device.units} units", device.note)))
    return f"{name}; catalogue {catalogue.hash & (1 << 64) - 1:016x}; {catalogue.kind}; {digest}"


def winner_of(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> str | None:
    """The name of the fastest planner for these problems ("uniform huge/256"), None if none was measured.

    Raises ValueError, naming the file, where it is not a file of tuned plans, and OSError if it can't be read.
    """
    file = cache_file()
    if file is None:
        return None
    try:
        status = file.stat()
    except OSError:
        return None
    _refuse_unless_regular(file, status)
    # The file is only ever replaced as a whole, so its inode, time and size identify its content.
    entries = _read(file, (status.st_ino, status.st_mtime_ns, status.st_size))
    if not entries:
        return None
    winner = entries.get(key_of(problems, device, catalogue))
    return None if winner is None else str(winner["winner"])


def check_file(file: Path) -> None:
    """Raises the errors of `store` early, before anything is measured."""
    with _locked(file):
        _kept(file)


def store(file: Path, key: str, entry: Mapping[str, Any]) -> None:
    """Adds or replaces an entry; entries that other processes added meanwhile stay. Raises the errors of `winner_of`,
    and OSError if the file can't be written."""
    with _locked(file):
        entries = dict(_kept(file))
        entries[key] = dict(entry)
        text = json.dumps({"version": _VERSION, "entries": entries}, indent=1, sort_keys=True)
        # Readers need no lock: they open either the old or the new file, each of them complete.
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        try:
            with os.fdopen(descriptor, "w") as out:
                out.write(text + "\n")
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """A lock against other writers: if two read the file at the same time, the later writer would drop the other's
    entry."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            _refuse_unless_regular(file, file.stat())
        lock = FileLock(file.with_name(f".{file.name}.lock"))
        lock.acquire()
    except OSError as error:
        raise _with_variable_name(file, error) from None
    try:
        yield
    finally:
        lock.release()


def _kept(file: Path) -> Mapping[str, Any]:
    return _parse(file) if file.exists() else {}


def _refuse_unless_regular(file: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        what = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise OSError(f"{VARIABLE}: {file} is {what}: name a file, or {OFF!r} to keep no plans")


def _with_variable_name(file: Path, error: OSError) -> OSError:
    """The error with the variable's name in its message."""
    return error if VARIABLE in str(error) else type(error)(error.errno, f"{VARIABLE}: {file}: {error.strerror}")


@lru_cache(maxsize=4)
def _read(file: Path, state: tuple[int, int, int]) -> Mapping[str, Any]:
    del state
    return _parse(file)


def _parse(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text()
        if not text.strip():  # an empty file, as mktemp makes it, counts as a new one
            return {}
        content = json.loads(text)
        entries: dict[str, Any] = content["entries"]
        if content["version"] != _VERSION or not all(isinstance(entry["winner"], str) for entry in entries.values()):
            raise ValueError(f"version {content['version']!r}")
    except OSError as error:
        raise _with_variable_name(file, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{VARIABLE}: {file} is not a file of tuned plans of this version ({error}); delete it, or set "
            f"{VARIABLE} to another path or to {OFF!r}"
        ) from None
    return entries
