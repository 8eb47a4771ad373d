"""Compiled kernels on disk: those that fit are loaded, all others are compiled anew, and numba's settings stay."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import llvmlite
import numba
import pytest
from numba.core.registry import cpu_target

import grammar_workers
from grammar_workers.matching.kernels import entry, step
from grammar_workers.numba_options import OPTIONS, cache, compiled_for

PROGRAM = """
import sys
from pathlib import Path
from grammar_workers.numba_options import cache
folder = Path(sys.argv[1])
cache.SOURCE_DIGEST = cache.digest_of(cache.kernel_sources(folder))
sys.path.insert(0, sys.argv[1])
import caller
print(caller.call(1), sum(caller.call.stats.cache_hits.values()))
"""
CALLED = "from numba import njit\n@njit\ndef called(x):\n    return x + {}\n"
CALLER = """
from numba import int64, njit
from called import called
from grammar_workers.numba_options import called_with

@called_with(int64)
@njit
def call(x):
    return called(x)
"""
OF_A_USER = """
from numba import njit

@njit(cache=True)
def kernel(x):
    return x + 1
"""
SETTINGS = """
import numba
before = dict(vars(numba.config))
import grammar_workers.compile
assert dict(vars(numba.config)) == before
import of_a_user
assert of_a_user.kernel(1) == 2
print(of_a_user.kernel.stats.cache_path)
"""
Change = Callable[[pytest.MonkeyPatch], None]


def run(program: str, folder: Path, **environment: str) -> list[str]:
    """The words that a fresh process prints. It finds the modules in `folder`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    searched = os.pathsep.join([*filter(None, sys.path), str(folder)])
    variables = {**inherited, "PYTHONPATH": searched, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def add(x: int) -> int:
    return x + 1


def is_loaded() -> bool:
    """Return True if a kernel is loaded from a folder, False if it is compiled. Check its result in both cases."""
    kernel = compiled_for((numba.int64,), **OPTIONS)(add)
    assert kernel(1) == 2
    return bool(sum(kernel.stats.cache_hits.values()))


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a kernel that the package contains, while the user's folder is empty."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(cache, "SHIPPED", tmp_path / "shipped")
    assert not is_loaded()
    own, folder = cache.kernel_folders()
    folder.parent.mkdir()
    own.rename(folder)
    (file,) = folder.iterdir()
    return file


def target(change: Callable[[str, str, str], tuple[str, str, str]]) -> Change:
    codegen = cpu_target.target_context.codegen()
    changed = change(*codegen.magic_tuple())
    return lambda monkeypatch: monkeypatch.setattr(codegen, "magic_tuple", lambda: changed)


def without(feature: str) -> Change:
    return target(lambda platform, cpu, features: (platform, cpu, features.replace(f"+{feature},", f"-{feature},")))


def replaced(owner: object, name: str, value: object) -> Change:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


OTHERS: dict[str, Change] = {
    "numba": replaced(numba, "__version__", "0.1"),
    "llvmlite": replaced(llvmlite, "__version__", "0.1"),
    "Python": replaced(sysconfig, "get_config_var", lambda name: "cpython-399-x86_64-linux-gnu"),
    "sources": replaced(cache, "SOURCE_DIGEST", "other"),
    "system": target(lambda platform, cpu, features: ("x86_64-apple-darwin", cpu, features)),
    "architecture": target(lambda platform, cpu, features: ("aarch64-unknown-linux-gnu", "generic", "")),
    "AVX2": without("avx2"),
    "BMI2": without("bmi2"),
    "FMA": without("fma"),
    "settings": target(lambda platform, cpu, features: (platform, "generic", "")),
}


def test_a_shipped_kernel_is_loaded_and_nothing_is_written(shipped: Path, tmp_path: Path) -> None:
    assert is_loaded()
    assert list((tmp_path / "own").iterdir()) == []


def test_any_cpu_with_the_features_loads_it(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target(lambda platform, cpu, features: (platform, "haswell", features + ",-avx512f"))(monkeypatch)
    assert is_loaded()


@pytest.mark.parametrize("other", OTHERS)
def test_a_kernel_for_something_else_is_compiled_anew(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    OTHERS[other](monkeypatch)
    assert not is_loaded()
    assert is_loaded(), "the user's folder has it now"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:500] + bytes([data[500] ^ 1]) + data[501:],
        lambda data: b"\0" + data[1:],
        lambda data: b"version https://git-lfs.github.com/spec/v1\n",
    ],
)
def test_a_damaged_kernel_is_compiled_anew(shipped: Path, damage: Callable[[bytes], bytes]) -> None:
    shipped.write_bytes(damage(shipped.read_bytes()))
    assert not is_loaded()
    assert is_loaded()


def test_a_kernel_of_this_machine_comes_before_a_shipped_one(shipped: Path, tmp_path: Path) -> None:
    kept = shipped.read_bytes()
    shipped.unlink()
    assert not is_loaded()
    shipped.write_bytes(kept[::-1])
    assert is_loaded()


def test_a_folder_that_cannot_be_written_to_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", "/proc/none")
    assert not is_loaded()
    assert not is_loaded()


def test_a_change_in_a_called_file_is_noticed(tmp_path: Path) -> None:
    kernels = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert run(PROGRAM, tmp_path, **kernels) == ["2", "0"]
    assert run(PROGRAM, tmp_path, **kernels) == ["2", "1"], "an unchanged kernel must come from the cache"
    (tmp_path / "called.py").write_text(CALLED.format(5))
    assert run(PROGRAM, tmp_path, **kernels) == ["6", "0"]


def test_times_and_folders_of_the_sources_do_not_matter(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "called.py").write_text(CALLED.format(1))
        os.utime(tmp_path / name / "called.py", (1, ord(name)))
    first, second = (cache.digest_of(cache.kernel_sources(tmp_path / name)) for name in ("a", "b"))
    assert first == second


def test_settings_and_kernels_of_the_program_around_us_stay(tmp_path: Path) -> None:
    (tmp_path / "of_a_user.py").write_text(OF_A_USER)
    assert run(SETTINGS, tmp_path) == [str(tmp_path / "__pycache__")]
    (folder,) = run(SETTINGS, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "chosen"))
    assert Path(folder).parent == tmp_path / "chosen"


def test_kernels_that_python_calls_are_cached_and_no_others() -> None:
    own, _ = cache.kernel_folders()
    assert own.name.startswith("kernels-")
    assert Path(entry.fill_mask.stats.cache_path) == own
    assert step.step.stats.cache_path is None
    names = {path.name for path in cache.kernel_sources(Path(grammar_workers.__file__).parent)}
    assert {"step.py", "mask.py", "slices.py", "trie.py"} <= names
    # Without compiled functions, but with what these take up.
    assert {"__init__.py", "json_text.py"} <= names
