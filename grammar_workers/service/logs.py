"""Logging of Serve replicas: all records of the three packages, on stderr in the encoding of Serve's log files.

Serve configures its own logger only (`ray.serve`), and writes text to stderr even if `logging_config` asks for JSON.
"""

from __future__ import annotations

import logging
from logging.handlers import MemoryHandler

from grammar_workers.logs import PACKAGES, RAY_SERVE


def log_as_serve_does() -> None:
    """Send the records of `PACKAGES` to Serve's handlers, and write stderr as the log file is written.

    Called by the constructor of each deployment, when Serve has configured its logger for the replica. Without a
    replica around it, there is no log file and nothing changes.
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
                if each not in handler.filters:
                    handler.addFilter(each)
    for package in PACKAGES:
        logger = logging.getLogger(package)
        logger.handlers = list(serve.handlers)
        logger.propagate = False
        logger.setLevel(serve.level)
