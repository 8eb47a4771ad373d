"""The store as its users see it: every URL, every kind of rubbish, and no exception."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.artifact import FORMAT_VERSION
from grammar_workers.artifacts.store import GrammarStore, open_store
from grammar_workers.artifacts.store.file_tier import MAX_ARTIFACT_BYTES, FileTier
from grammar_workers.errors import ArtifactError
from tests.grammar_workers.flights import single_flight

pytestmark = pytest.mark.usefixtures("patient_redis")

FINGERPRINT = "ab12"


def new_key() -> str:
    return secrets.token_hex(32)


def new_artifact(key: str, size: int = 100, fingerprint: str = FINGERPRINT) -> bytes:
    return artifact.pack(secrets.token_bytes(size), key=key, fingerprint=fingerprint)


class Bomb:
    """Unpickling this leaves a trace."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def rubbish(key: str, trace: Path) -> dict[str, bytes]:
    good = new_artifact(key)
    return {
        "random": secrets.token_bytes(500),
        "empty": b"",
        "truncated": good[:-1],
        "other version": good[:4] + b"\x63\x00" + good[6:],
        "other key": new_artifact(new_key()),
        "other vocabulary": new_artifact(key, fingerprint="cd34"),
        "pickle bomb": pickle.dumps(Bomb(str(trace))),
    }


def file_of(folder: Path, key: str) -> Path:
    (path,) = folder.glob(f"*/{key}*")
    return path


@pytest.fixture(params=["memory", "file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_url')}?file={tmp_path}"
    return {"memory": "memory://", "file": f"file://{tmp_path}"}[request.param]


def test_round_trip(url: str) -> None:
    store, key = open_store(url), new_key()
    data = new_artifact(key, size=100_000)
    assert store.get(key) is None
    store.put(key, data)
    assert store.get(key) == data
    assert store.lookup(key).source == "process"  # type: ignore[union-attr]
    assert store.stats()["process"]["hits"] == 2
    assert store.stats()["process"]["misses"] == 1


def test_only_valid_artifacts_get_in_and_only_keys_get_out(url: str) -> None:
    store = open_store(url, FINGERPRINT)
    key = new_key()
    for data in (b"", new_artifact(new_key()), new_artifact(key, fingerprint="cd34")):
        with pytest.raises(ArtifactError):
            store.put(key, data)
    for name in ("", "../../etc/passwd", key.upper(), key + "\n", "é" * 64):
        assert store.get(name) is None
        with pytest.raises(ValueError, match="grammar key"), single_flight(store, name):
            raise AssertionError


def test_another_process_of_the_node_finds_the_file(tmp_path: Path) -> None:
    key = new_key()
    data = new_artifact(key)
    open_store(f"file://{tmp_path}").put(key, data)
    found = open_store(f"file://{tmp_path}").lookup(key)
    assert found is not None
    assert (found.data, found.source) == (data, "file")


def test_another_node_finds_it_in_redis_and_keeps_a_file(redis_url: str, tmp_path: Path) -> None:
    key = new_key()
    data = new_artifact(key)
    open_store(f"{redis_url}?file={tmp_path / 'a'}").put(key, data)
    other_node = open_store(f"{redis_url}?file={tmp_path / 'b'}")
    assert other_node.lookup(key).source == "redis"  # type: ignore[union-attr]
    assert open_store(f"file://{tmp_path / 'b'}").get(key) == data


@pytest.mark.parametrize("kind", list(rubbish(new_key(), Path("unused"))))
def test_rubbish_in_a_file_is_missing_counted_and_dropped(kind: str, tmp_path: Path) -> None:
    store, key = open_store(f"file://{tmp_path}", FINGERPRINT), new_key()
    open_store(f"file://{tmp_path}").put(key, new_artifact(key))
    file_of(tmp_path, key).write_bytes(rubbish(key, tmp_path / "trace")[kind])
    assert store.get(key) is None
    assert store.stats()["file"]["corrupt"] == 1
    assert not list(tmp_path.glob(f"*/{key}*"))
    assert not (tmp_path / "trace").exists()
    store.put(key, data := new_artifact(key))
    assert open_store(f"file://{tmp_path}").get(key) == data


def test_files_are_bounded_and_the_last_used_ones_stay(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, capacity_bytes=1 << 20)
    kept = new_key()
    tier.put(kept, b"x" * 10_000)
    for age in range(200):
        key = new_key()
        tier.put(key, b"x" * 10_000)
        os.utime(file_of(tmp_path, key), (age, age))
        assert tier.get(kept) is not None
    total = sum(file.stat().st_size for file in tmp_path.glob("*/*"))
    assert total <= (1 << 20) + (1 << 20) // 32 + 10_000
    assert tier.counters.snapshot()["evicted"] > 50


def test_a_file_that_nobody_reads_goes_and_the_rest_is_counted(tmp_path: Path) -> None:
    store, idle, fresh = open_store(f"file://{tmp_path}"), new_key(), new_key()
    for key in (idle, fresh):
        store.put(key, new_artifact(key))
    idle_file = file_of(tmp_path, idle)
    os.utime(idle_file, (0, 0))
    later = open_store(f"file://{tmp_path}")
    later.put(key := new_key(), new_artifact(key))
    assert not idle_file.exists()
    assert file_of(tmp_path, fresh).exists()
    stats = later.stats()["file"]
    assert (stats["entries"], stats["evicted"]) == (2, 1)
    assert stats["bytes"] == 2 * file_of(tmp_path, fresh).stat().st_blocks * 512


def test_eviction_removes_what_a_crashed_writer_left(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    left, fresh = tmp_path / "ab" / ".writing-old", tmp_path / "ab" / ".writing-new"
    for file in (left, fresh):
        file.write_bytes(b"part")
    os.utime(left, (0, 0))
    FileTier(tmp_path, capacity_bytes=1 << 20).put(new_key(), b"data")
    assert not left.exists()
    assert fresh.exists()


def put_in_place(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            here = os.open(path.parent, os.O_RDONLY)  # its whole path would be too long
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
            os.close(here)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40 if kind == "sparse file" else MAX_ARTIFACT_BYTES + 1)


NO_ARTIFACTS = ["pipe", "folder", "link", "socket", "sparse file", "large file"]


@pytest.mark.parametrize("kind", NO_ARTIFACTS)
def test_what_is_no_artifact_is_missing_and_nobody_waits_for_it(kind: str, tmp_path: Path) -> None:
    store, key = open_store(f"file://{tmp_path}", FINGERPRINT), new_key()
    put_in_place(kind, tmp_path / key[:2] / f"{key}.v{FORMAT_VERSION}.tfsm")
    assert store.get(key) is None
    store.put(key, data := new_artifact(key))
    assert store.get(key) == data
    other = open_store(f"file://{tmp_path}", FINGERPRINT).get(key)
    assert other == (None if kind == "folder" else data)


@pytest.mark.parametrize("kind", NO_ARTIFACTS)
def test_eviction_passes_over_what_is_no_artifact(kind: str, tmp_path: Path) -> None:
    in_the_way = tmp_path / "ab" / f"{'ab' * 32}.v1.tfsm"
    put_in_place(kind, in_the_way)
    (tmp_path / "cd").write_text("no folder")
    if kind in ("folder", "pipe", "socket"):
        os.utime(in_the_way, (0, 0))
    tier = FileTier(tmp_path, capacity_bytes=1 << 20)
    tier.put(key := "ee" * 32, b"data")
    assert tier.get(key) == b"data"
    assert "errors" not in tier.counters.snapshot()


def test_nothing_larger_than_a_file_may_be_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammar_workers.artifacts.store.file_tier.MAX_ARTIFACT_BYTES", 1000)
    tier = FileTier(tmp_path, capacity_bytes=1 << 20)
    tier.put(key := new_key(), b"x" * 1001)
    assert tier.get(key) is None
    assert tier.counters.snapshot() == {"no_space": 1}


def test_a_full_disk_degrades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammar_workers.artifacts.store.file_tier.MIN_FREE_BYTES", 1 << 62)
    store, key = open_store(f"file://{tmp_path}"), new_key()
    store.put(key, data := new_artifact(key))
    assert store.get(key) == data
    assert store.stats()["file"]["no_space"] == 1
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize("obstacle", ["a file in the way", "a folder that cannot be made"])
def test_an_unusable_folder_degrades(obstacle: str, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("not a folder")
    folder = blocked if obstacle == "a file in the way" else Path("/proc/turnstile")
    store, key = open_store(f"file://{folder}"), new_key()
    with single_flight(store, key) as leads:
        assert leads
        assert store.get(key) is None
        store.put(key, data := new_artifact(key))
    assert store.get(key) == data
    assert store.stats()["file"]["errors"]


def test_files_are_private_and_temporary_ones_are_gone(tmp_path: Path) -> None:
    store, key = open_store(f"file://{tmp_path}"), new_key()
    store.put(key, new_artifact(key))
    assert stat.S_IMODE(file_of(tmp_path, key).stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*/.*"))


def test_threads_that_write_and_read_one_key_see_whole_artifacts(tmp_path: Path) -> None:
    key = new_key()
    written = [new_artifact(key, size=200_000) for _ in range(4)]
    problems: list[str] = []

    def work(data: bytes) -> None:
        for _ in range(30):
            open_store(f"file://{tmp_path}").put(key, data)
            store = open_store(f"file://{tmp_path}")
            if store.get(key) not in written or store.stats()["file"].get("corrupt"):
                problems.append("partial read")

    threads = [threading.Thread(target=work, args=(data,)) for data in written]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@settings(max_examples=30)
@given(data=st.binary(max_size=300))
def test_no_file_content_breaks_a_lookup(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, key = tmp_path_factory.mktemp("store"), new_key()
    FileTier(folder, capacity_bytes=1 << 20).put(key, data)
    assert open_store(f"file://{folder}").get(key) is None


@pytest.mark.parametrize(
    "url", ["", "/folder", "http://host", "file://relative/folder", "redis://host?file=relative", "memory://?ttl=3"]
)
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"store|folder"):
        open_store(url)


def test_home_folder_and_size_in_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store: GrammarStore = open_store("file://~/grammars?file_mb=1")
    key = new_key()
    store.put(key, new_artifact(key, size=2 << 20))
    assert store.stats()["file"]["no_space"] == 1
    key = new_key()
    store.put(key, new_artifact(key))
    assert file_of(tmp_path / "grammars", key).exists()
