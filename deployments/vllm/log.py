"""Our lines in vLLM's log."""

from __future__ import annotations

import logging
import sys

from grammar_workers.logs import PACKAGES, RAY_SERVE


def log_as_vllm() -> None:
    """Has our loggers write where vLLM's do, from the level that `VLLM_LOGGING_LEVEL` names on.

    Some of our lines go to Ray Serve's logger, which in a replica writes to the replica's log, and there it stays so.
    """
    names = PACKAGES if _in_replica() else (*PACKAGES, RAY_SERVE)
    vllm = logging.getLogger("vllm")
    for name in names:
        one = logging.getLogger(name)
        one.handlers, one.propagate = list(vllm.handlers), False
        one.setLevel(vllm.level)


def _in_replica() -> bool:
    if (serve := sys.modules.get(RAY_SERVE)) is None:
        return False
    try:
        serve.get_replica_context()
    except serve.exceptions.RayServeException:
        return False
    return True
