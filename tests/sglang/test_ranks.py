"""Ranks that run the same batches come to the same grammars, whoever of them could compile."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.conftest import TINY

NOBODY = {"TURNSTILE_URL": "http://127.0.0.1:9"}


def run_ranks(folder: Path, tp: int, pp: int, unable: set[int]) -> list[dict[str, Any]]:
    """What each rank prints. Those that are `unable` have a compile server that does not answer; no store is shared."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.sglang.rank", str(rank), str(tp), str(pp), str(port), str(TINY)],
            env={
                **os.environ,
                "TURNSTILE_STORE": f"file://{folder / str(rank)}",
                **(NOBODY if rank in unable else {}),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(tp * pp)
    ]
    try:
        return [json.loads(process.communicate(timeout=280)[0].splitlines()[-1]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)], ids=["tensor-parallel", "pipeline-parallel"])
def test_one_rank_compiles_and_all_have_its_grammars(tmp_path: Path, tp: int, pp: int) -> None:
    first, second = run_ranks(tmp_path, tp, pp, unable={1})
    assert first["compiles"] and not second["compiles"]
    assert first["outcomes"] == second["outcomes"]
    outcomes = first["outcomes"]
    assert json.loads(outcomes[0])["a"] in ("x", "yz") and set(outcomes[2]) <= set("ab")
    assert "invalid_grammar" in outcomes[1] and "invalid_grammar" in outcomes[4]


def test_where_the_first_rank_cannot_compile_all_refuse(tmp_path: Path) -> None:
    first, second = run_ranks(tmp_path, 2, 1, unable={0})
    assert first["outcomes"] == second["outcomes"]
    assert all("did not answer" in outcome for outcome in first["outcomes"][:4:2])
