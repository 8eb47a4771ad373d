"""Logging in Serve replicas: Turnstile's log records go to Serve's log files, and to stderr in the same format.

Without this module, Serve configures only its own logger (`ray.serve`). It also writes text to stderr even if
`logging_config` selects JSON.
"""

from __future__ import annotations

import logging
from logging.handlers import MemoryHandler

from grammar_workers.logs import PACKAGES, RAY_SERVE, log_as


def log_as_serve_does() -> None:
    """Send the log records of Turnstile to the handlers of Ray Serve, and give stderr the format of Serve's log file.

    The constructor of each deployment calls this function. Serve has configured its logger by then. Outside of a
    replica, the function has no effect.
    """
    serve = logging.getLogger(RAY_SERVE)
    files = [handler for handler in serve.handlers if isinstance(handler, MemoryHandler) and handler.target]
    if not files:
        return
    (file, *_) = files
    for handler in serve.handlers:
        if type(handler) is logging.StreamHandler and file.target is not None:
            handler.setFormatter(file.target.formatter)
            for each in file.filters:
                handler.addFilter(each)
    log_as(serve, PACKAGES)
