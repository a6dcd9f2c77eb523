"""The file of measured winners that `auto` follows: written by `vb.autotune`, read whenever a program is lowered.

It is JSON: `entries` by (device, catalogue, kind of arithmetic, digest of the shapes), each with the name of the
planner that won, and what all candidates took, for people to read. Only the name counts.
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
    """Where winners are kept: what VBGEMM_CACHE names, None where that is "off", else a file of the user's cache."""
    named = os.environ.get(VARIABLE, "")
    if named:
        return None if named.lower() == OFF else Path(named).expanduser()
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "jax_vbgemm" / "autotune.json"


def with_arithmetic(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Those that reach a kernel."""
    return tuple(p for p in problems if p.m and p.n and p.k and p.batch)


def key_of(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> str:
    """What a winner holds for. Problems without arithmetic don't count."""
    shapes = [
        (p.m, p.n, p.k, p.batch, p.transpose_a, p.transpose_b, *([True] if p.symmetric else []))
        for p in with_arithmetic(problems)
    ]
    digest = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:32]
    # A device that borrows another's entry says in its note which it is.
    name = " ".join(filter(None, (device.name, f"{device.units} units", device.note)))
    return f"{name}; catalogue {catalogue.hash & (1 << 64) - 1:016x}; {catalogue.kind}; {digest}"


def winner_of(problems: Sequence[Problem], device: DeviceSpec, catalogue: Catalogue) -> str | None:
    """The planner that won for these problems, by its name ("uniform huge/256"), None where none was measured.

    Raises ValueError, naming the file, where it isn't one of ours, and OSError where it can't be read.
    """
    file = cache_file()
    if file is None:
        return None
    try:
        status = file.stat()
    except OSError:
        return None
    _refuse_unless_regular(file, status)
    # A file is replaced as a whole, never changed in place, so that this tells one content from the next.
    entries = _read(file, (status.st_ino, status.st_mtime_ns, status.st_size))
    if not entries:
        return None
    winner = entries.get(key_of(problems, device, catalogue))
    return None if winner is None else str(winner["winner"])


def check(file: Path) -> None:
    """Raises as `store`, before anything is measured for it."""
    with _locked(file):
        _kept(file)


def store(file: Path, key: str, entry: Mapping[str, Any]) -> None:
    """Adds an entry or replaces it; what other processes added meanwhile stays. Raises as `winner_of` and OSError."""
    with _locked(file):
        entries = dict(_kept(file))
        entries[key] = dict(entry)
        text = json.dumps({"version": _VERSION, "entries": entries}, indent=1, sort_keys=True)
        # Readers take no lock: what they open is the old file or the new one, whole.
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
    """Alone among the writers of the file: without, of two that read it at once the later would drop an entry."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            _refuse_unless_regular(file, file.stat())
        lock = FileLock(file.with_name(f".{file.name}.lock"))
        lock.acquire()
    except OSError as error:
        raise _about(file, error) from None
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


def _about(file: Path, error: OSError) -> OSError:
    """The error with the variable's name, unless it has it."""
    return error if VARIABLE in str(error) else type(error)(error.errno, f"{VARIABLE}: {file}: {error.strerror}")


@lru_cache(maxsize=4)
def _read(file: Path, state: tuple[int, int, int]) -> Mapping[str, Any]:
    del state
    return _parse(file)


def _parse(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text()
        if not text.strip():  # made by something like mktemp: a fresh start
            return {}
        content = json.loads(text)
        entries: dict[str, Any] = content["entries"]
        if content["version"] != _VERSION or not all(isinstance(entry["winner"], str) for entry in entries.values()):
            raise ValueError(f"version {content['version']!r}")
    except OSError as error:
        raise _about(file, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{VARIABLE}: {file} is not a file of tuned plans of this version ({error}); delete it, or set "
            f"{VARIABLE} to another path or to {OFF!r}"
        ) from None
    return entries
