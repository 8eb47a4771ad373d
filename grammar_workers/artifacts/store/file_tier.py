"""Tier (level) of the grammar store that the processes of a node share: one file for each grammar key."""

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
from grammar_workers.counters import Counters
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

# Maximum number of files.
MAX_FILES = 100_000
# Maximum size of a file.
MAX_ARTIFACT_BYTES = 64 << 20
# Seconds after which a file that has not been read is removed, even if there is room for it.
TIME_TO_LIVE_S = 7 * 24 * 3600
# Free disk space, in bytes, that the tier leaves to others, whatever its own capacity is.
MIN_FREE_BYTES = 256 << 20

_SUFFIX = ".tfsm"
# Suffix with the format version. Old and new replicas of a rolling upgrade do not drop each other's files.
_VERSIONED_SUFFIX = f".v{FORMAT_VERSION}{_SUFFIX}"
_TEMPORARY_PREFIX = ".writing-"
_TEMPORARY_LIFETIME_S = 600
_WRITES_BETWEEN_SCANS = 1024


class FileTier:
    """Artifacts (compiled grammars) in files that the processes of a node share. Thread-safe.

    The file of key `ab12...ef` is `folder/ab/ab12...ef.vN.tfsm`, with format version N. The tier is bounded by bytes,
    number and age. The least recently used files are removed first.

    A file is written under another name and then renamed, so other processes never read a partial file. They can still
    read a removed file that they have opened. The modification time is the time of last use, because most file systems
    do not keep access times. Except in `check`, errors of the file system raise no exception: they are counted, and a
    failed read counts as a miss.

    Args:
        folder: Root folder.
        capacity_bytes: Maximum size of all files.

    Attributes:
        name: Name of the tier in figures and metrics.
        trusted: False: other processes write here, so artifacts are verified when they are read.
        folder: The argument `folder`.
        capacity_bytes: The argument `capacity_bytes`.
        counters: Numbers of events: `errors`, `no_space` and `evicted`, and those that the store counts.
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
        """Check that files can be written into the folder. The folder is created if it does not exist.

        Raises:
            OSError: No file can be written. The message has the action to take.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(prefix=_TEMPORARY_PREFIX, dir=self.folder):
                pass
        except OSError as error:
            is_folder = isinstance(error, PermissionError)
            todo = "make it writable for this user, or name another folder" if is_folder else "name another folder"
            raise OSError(f"cannot write into {self.folder} ({error.strerror}): {todo}") from error

    def get(self, key: str) -> bytes | None:
        """Return the unverified artifact in the file of a grammar key. None: no such file, or it cannot be read."""
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
        """Store an artifact (compiled grammar) in a file. An existing file of the key is replaced.

        If the artifact is too large or the disk has too little space, nothing is stored and `no_space` is counted. An
        error of the file system is counted as `errors`.

        Args:
            key: Grammar key.
            data: The artifact.
        """
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
        """Remove the file of a grammar key, if there is one. A failure is counted as `errors`."""
        self._remove(self._path(key))

    def stats(self) -> dict[str, int | str]:
        """Return number and size of the files of all processes, as of the last scan of the folder.

        Returns:
            `{"entries": number of files, "bytes": size on disk}`. Both are 0 before the first scan by this process.
        """
        return {"entries": self._seen_files, "bytes": self._seen_bytes}

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}{_VERSIONED_SUFFIX}"

    def _remove(self, path: Path | str) -> None:
        with self._noting("remove"):
            Path(path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _noting(self, action: str) -> Iterator[None]:
        """Count an error of the file system in the block, and continue after the block."""
        try:
            yield
        except OSError as error:
            if self.counters.add("errors") == 1:
                logger.warning("grammar files unusable: action=%s folder=%s error=%s", action, self.folder, error)

    def _account(self, size: int) -> None:
        """Scan the folder now and then. Between two scans, each process adds at most a 32nd of the capacity."""
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
        """Return (time of last use, bytes on disk, path) of every artifact, and remove files of crashed writers."""
        found, abandoned = [], time.time() - _TEMPORARY_LIFETIME_S
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
                    elif entry.name.startswith(_TEMPORARY_PREFIX) and status.st_mtime < abandoned:
                        self._remove(entry.path)
        return found


def _open_file(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe, and without following a link."""
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
