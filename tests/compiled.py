"""Programs that tests compile, kept in pytest's cache: the processes of a run share them, and so does the next run."""

import fcntl
import hashlib
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Preprocessed(NamedTuple):
    """A source file as the compiler sees it."""

    digest: str  # of its text, wherever it lies: copies of the sources share all objects but those they change
    files: frozenset[Path]  # that it consists of


class Compiled:
    """Compiles what is not in the cache yet; an object's name there tells all that went into it.

    Source files must not change while the tests run: each is preprocessed once in a process."""

    def __init__(self, cache: Path, compiler: str) -> None:
        self.cache = cache
        self.compiler = compiler
        self._preprocessed: dict[tuple[str, ...], Preprocessed] = {}

    def preprocessed(self, options: Sequence[str], source: Sequence[str]) -> Preprocessed:
        command = (*options, *source)
        if command not in self._preprocessed:
            lines = self._run([*command, "-E", "-o", "-"]).splitlines()
            text = "\n".join(line for line in lines if line.strip() and not line.startswith("# "))
            markers = (re.match(r'# \d+ "([^<"]+)"', line) for line in lines if line.startswith("# "))
            files = frozenset(Path(marker[1]) for marker in markers if marker)
            self._preprocessed[command] = Preprocessed(self._key(text), files)
        return self._preprocessed[command]

    def object(self, options: Sequence[str], source: Sequence[str]) -> Path:
        """`source` ends with the file; what comes before it may differ where the preprocessed text is the same."""
        content = self.preprocessed(options, source).digest
        return self._make([*options, "-c", *source], f"{self._key(options, content)}.o")

    def program(self, options: Sequence[str], objects: Sequence[Path]) -> Path:
        names = [str(path) for path in objects]
        return self._make([*options, *names], f"program_{self._key(options, *names)}")

    def _key(self, *content: object) -> str:
        return hashlib.sha256(repr((self.compiler, *content)).encode()).hexdigest()[:20]

    def _make(self, command: Sequence[str], name: str) -> Path:
        target = self.cache / name
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # other test processes want the same
            if not target.exists():
                unfinished = target.with_suffix(".unfinished")
                self._run([*command, "-o", str(unfinished)])
                unfinished.replace(target)
        return target

    def _run(self, command: Sequence[str]) -> str:
        result = subprocess.run([self.compiler, *command], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout
