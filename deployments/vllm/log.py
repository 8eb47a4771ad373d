"""Our lines in vLLM's log."""

from __future__ import annotations

import logging
import sys

_SERVE = "ray.serve"
_OURS = ("deployments", "gpu_workers", "grammar_workers")


def log_as_vllm() -> None:
    """Has our loggers write where vLLM's do, from the level that `VLLM_LOGGING_LEVEL` names on.

    Some of our lines go to Ray Serve's logger, which in a replica writes to the replica's log, and there it stays so.
    """
    names = _OURS if _in_replica() else (*_OURS, _SERVE)
    vllm = logging.getLogger("vllm")
    for name in names:
        one = logging.getLogger(name)
        one.handlers, one.propagate = list(vllm.handlers), False
        one.setLevel(vllm.level)


def _in_replica() -> bool:
    if (serve := sys.modules.get(_SERVE)) is None:
        return False
    try:
        serve.get_replica_context()
    except serve.exceptions.RayServeException:
        return False
    return True
