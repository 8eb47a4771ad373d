"""What every module of this folder starts from."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def same_environment() -> Iterator[None]:
    """An engine in this process says by variables how its own processes behave; servers started later inherit them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
