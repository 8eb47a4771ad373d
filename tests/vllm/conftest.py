"""What every module of this folder starts from."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--first-of-each-file", action="store_true", help="run the first test of each file only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--first-of-each-file`, after tests marked long are left out (`trylast`)."""
    if not config.getoption("--first-of-each-file"):
        return
    first: dict[object, pytest.Item] = {}
    for item in items:
        first.setdefault(item.path, item)
    kept = set(map(id, first.values()))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = first.values()


@pytest.fixture(scope="module", autouse=True)
def same_environment() -> Iterator[None]:
    """An engine in this process says by variables how its own processes behave; servers started later inherit them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
