"""Loggers whose records are one line each, whatever text of a client they name."""

from __future__ import annotations

import logging
import re

PACKAGES = ("deployments", "gpu_workers", "grammar_workers")
"""Loggers above those of our modules."""
RAY_SERVE = "ray.serve"
"""The logger that Ray Serve configures."""
SERVE = f"{RAY_SERVE}.turnstile"
"""Below the logger that Ray Serve gives its handlers to, so that records of replicas arrive in their files."""
# Control characters, separators of lines, marks that reorder text, and surrogates, which no handler can encode.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def get_logger(name: str) -> logging.Logger:
    """Return the logger of that name, with the filter that escapes control characters in messages and extra fields."""
    logger = logging.getLogger(name)
    logger.addFilter(_ESCAPING)
    return logger


def escaped(text: str) -> str:
    """Replace what could begin a line or steer a terminal by its escape, such as `\\n`."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class _Escaping(logging.Filter):
    """Edits records, which formatters of Ray, vLLM and SGLang write, as text or as JSON."""

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
