"""The node's tier: content-addressed files, shared by every process of the node."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from grammar_workers.artifacts.artifact import FORMAT_VERSION
from grammar_workers.artifacts.store.counters import Counters
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

MAX_FILES = 100_000
MAX_ARTIFACT_BYTES = 64 << 20
"""Of one file."""
TIME_TO_LIVE_S = 7 * 24 * 3600
"""A file that nobody has read for so long goes, though there be room."""
MIN_FREE_BYTES = 256 << 20
"""Free disk space that the tier leaves to others, whatever its own capacity."""

_SUFFIX = ".tfsm"
_VERSIONED_SUFFIX = f".v{FORMAT_VERSION}{_SUFFIX}"
"""Versioned, so that old and new replicas of a rolling upgrade do not drop each other's files."""
_TEMPORARY_PREFIX = ".writing-"
_TEMPORARY_LIFETIME_S = 600
_WRITES_BETWEEN_SCANS = 1024


class FileTier:
    """`folder/ab/ab12...ef.v1.tfsm`, one file per grammar key, bounded in bytes, number and age by least recent use.

    Files appear whole (written aside, then renamed) and are removed by unlinking, so readers in other processes never
    see a partial one and keep what they have open. The time of last use is the modification time, set on each hit:
    most file systems do not keep access times. A folder that is full or not writable makes the tier useless, not wrong:
    every failure is counted and looks like a miss.
    """

    name = "file"
    trusted = False

    def __init__(self, folder: Path, capacity_bytes: int) -> None:
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self.counters = Counters()
        self._scan_lock = threading.Lock()
        self._writes_until_scan = 0
        self._bytes_until_scan = 0
        self._seen_files = 0
        self._seen_bytes = 0

    def check(self) -> None:
        """Raises `OSError`, which says what to do, where no file can be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(prefix=_TEMPORARY_PREFIX, dir=self.folder):
                pass
        except OSError as error:
            is_folder = isinstance(error, PermissionError)
            todo = "make it writable for this user, or name another folder" if is_folder else "name another folder"
            raise OSError(f"cannot write into {self.folder} ({error.strerror}): {todo}") from error

    def get(self, key: str) -> bytes | None:
        absent = contextlib.suppress(FileNotFoundError)
        with self._noting("read"), absent, open(self._path(key), "rb", opener=_open_file) as file:
            status, most = os.fstat(file.fileno()), min(MAX_ARTIFACT_BYTES, self.capacity_bytes)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                raise OSError(f"{key} is no file of at most {most} bytes")
            with self._noting("touch"):  # a read-only folder still serves
                os.utime(file.fileno())
            return file.read(most)
        return None

    def put(self, key: str, data: bytes) -> None:
        with self._noting("write"):
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path.parent).free
            if len(data) > min(MAX_ARTIFACT_BYTES, self.capacity_bytes) or free - len(data) < MIN_FREE_BYTES:
                self.counters.add("no_space")
                return
            _write_whole(path, data)
            self._account(len(data))

    def discard(self, key: str) -> None:
        self._remove(self._path(key))

    def stats(self) -> dict[str, int | str]:
        """As the last scan of the folder left them, which all processes of the node share."""
        return {"entries": self._seen_files, "bytes": self._seen_bytes}

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_VERSIONED_SUFFIX}"

    def _remove(self, path: Path | str) -> None:
        with self._noting("remove"):
            Path(path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _noting(self, action: str) -> Iterator[None]:
        """Count what the file system refuses inside, and go on behind it."""
        try:
            yield
        except OSError as error:
            if self.counters.add("errors") == 1:
                logger.warning("cannot %s grammar files under %s: %s", action, self.folder, error)

    def _account(self, size: int) -> None:
        """Scan now and then. Between scans each process adds at most a 32nd of the capacity."""
        self._bytes_until_scan -= size
        self._writes_until_scan -= 1
        if min(self._bytes_until_scan, self._writes_until_scan) > 0 or not self._scan_lock.acquire(blocking=False):
            return
        try:
            self._bytes_until_scan = self.capacity_bytes // 32
            self._writes_until_scan = _WRITES_BETWEEN_SCANS
            self._evict()
        finally:
            self._scan_lock.release()

    def _evict(self) -> None:
        files = sorted(self._scan())
        left_files, left_bytes = len(files), sum(size for _, size, _ in files)
        expired = time.time() - TIME_TO_LIVE_S
        for used_at, size, path in files:
            if left_bytes <= self.capacity_bytes and left_files <= MAX_FILES and used_at >= expired:
                break
            self._remove(path)
            self.counters.add("evicted")
            left_bytes -= size
            left_files -= 1
        self._seen_files, self._seen_bytes = left_files, left_bytes

    def _scan(self) -> list[tuple[float, int, str]]:
        """(time of last use, bytes on disk, path) of every artifact; removes what crashed writers left behind."""
        found = []
        for folder in self.folder.glob("[0-9a-f][0-9a-f]"):
            if not folder.is_dir():
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # another process evicted it
                        continue
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if entry.name.endswith(_SUFFIX):
                        found.append((status.st_mtime, max(status.st_size, status.st_blocks * 512), entry.path))
                    elif (
                        entry.name.startswith(_TEMPORARY_PREFIX)
                        and time.time() - status.st_mtime > _TEMPORARY_LIFETIME_S
                    ):
                        self._remove(entry.path)
        return found


def _open_file(path: str, flags: int) -> int:
    """Waits for no writer of a pipe, and follows no link."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _write_whole(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
