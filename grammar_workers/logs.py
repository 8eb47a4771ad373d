"""Loggers that escape control characters, so that text of a client cannot forge a log record."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

# Parents of the loggers of all modules.
PACKAGES = ("deployments", "gpu_workers", "grammar_workers")
# Logger that Ray Serve configures.
RAY_SERVE = "ray.serve"
# Logger below that of Ray Serve, whose handlers write the records to the log file of the replica.
SERVE = f"{RAY_SERVE}.turnstile"
# Control characters, separators of lines, marks that reorder text, and surrogates, which no handler can encode.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def get_logger(name: str) -> logging.Logger:
    """Return the logger with this name, with a filter that escapes control characters.

    The filter edits messages, extra fields and tracebacks, so that none of their lines looks like another log record.
    Repeated calls add the filter only once.

    Args:
        name: Name of the logger, such as that of the module.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_ESCAPING)
    return logger


def log_as(other: logging.Logger, names: Iterable[str]) -> None:
    """Give some loggers the handlers and the level of another logger. Their records go to these handlers only.

    Args:
        other: Logger whose handlers and level are used.
        names: Names of the loggers to change.
    """
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = list(other.handlers), False
        logger.setLevel(other.level)


def escaped(text: str) -> str:
    r"""Return `text` with escapes, such as `\n`, for control characters, line separators and lone surrogates.

    Characters that reverse the direction of text are escaped, too.
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Escaping(logging.Filter):
    """Filter that edits records, which formatters of Ray, vLLM and SGLang write as text or as JSON."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = escaped(record.getMessage()), ()
        for name, value in list(vars(record).items()):
            if isinstance(value, str) and name != "msg":
                setattr(record, name, escaped(value))
        if record.exc_info:
            # Its lines are indented, so that none of them looks like a record.
            lines = logging.Formatter().formatException(record.exc_info).split("\n")
            record.exc_text = "\n".join("  " + escaped(line) for line in lines)
        return True


_ESCAPING = _Escaping()
