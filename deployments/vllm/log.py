"""Logging of the vLLM plugin: Turnstile's log records go to the handlers of vLLM's log."""

from __future__ import annotations

import logging
import sys

from grammar_workers.logs import PACKAGES, RAY_SERVE, log_as


def log_as_vllm() -> None:
    """Send Turnstile's log records to the handlers of vLLM's logger.

    Turnstile's loggers also get the level of vLLM's logger. Outside a replica of Ray Serve, the logger of Ray Serve is
    changed in this way, too, because Turnstile uses it. In a replica, its records stay in the log of the replica.
    """
    log_as(logging.getLogger("vllm"), PACKAGES if _in_replica() else (*PACKAGES, RAY_SERVE))


def _in_replica() -> bool:
    if (serve := sys.modules.get(RAY_SERVE)) is None:
        return False
    try:
        serve.get_replica_context()
    except serve.exceptions.RayServeException:
        return False
    return True
