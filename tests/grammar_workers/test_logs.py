"""Log records of the packages in a Serve replica: where Serve's own go, on stderr in the encoding of the files."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.serve._private.common import ServeComponentType
from ray.serve._private.logging_utils import configure_component_logger
from ray.serve.schema import LoggingConfig

from grammar_workers.logs import PACKAGES, RAY_SERVE
from grammar_workers.service.logs import log_as_serve_does


@pytest.fixture
def loggers() -> Iterator[None]:
    """Puts handlers, propagation and levels back."""
    kept = [
        (logger, list(logger.handlers), logger.propagate, logger.level)
        for logger in map(logging.getLogger, (RAY_SERVE, *PACKAGES))
    ]
    yield
    for logger, handlers, propagate, level in kept:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.usefixtures("loggers")
def test_records_of_all_packages_are_json_on_stderr_and_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_component_logger(
        component_name="turnstile_Router",
        component_id="abc",
        component_type=ServeComponentType.REPLICA,
        logging_config=LoggingConfig(encoding="JSON", logs_dir=str(tmp_path)),
        max_bytes=1 << 20,
        backup_count=1,
    )
    log_as_serve_does()
    logging.getLogger(RAY_SERVE).info("one", extra={"grammar_key": "k"})
    logging.getLogger("grammar_workers.artifacts.store.redis_client").warning("two")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["message"], first["grammar_key"], first["replica"]) == ("one", "k", "abc")
    assert (second["message"], second["levelname"]) == ("two", "WARNING")
    (file,) = tmp_path.iterdir()
    assert [json.loads(line)["message"] for line in file.read_text().splitlines()] == ["one", "two"]


@pytest.mark.usefixtures("loggers")
def test_outside_of_a_replica_nothing_changes() -> None:
    logging.getLogger(RAY_SERVE).handlers = [logging.StreamHandler()]
    before = [list(logging.getLogger(name).handlers) for name in (RAY_SERVE, *PACKAGES)]
    log_as_serve_does()
    assert [logging.getLogger(name).handlers for name in (RAY_SERVE, *PACKAGES)] == before
