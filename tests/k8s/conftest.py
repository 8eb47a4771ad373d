from __future__ import annotations

import os

import pytest

from tests.k8s.manifests import OVERLAYS, Manifest, build, kustomize_command


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    """The objects of each overlay in turn. In CI a missing kubectl is a failure."""
    if kustomize_command() is None:
        reason = "needs kubectl or kustomize on PATH (https://kubernetes.io/docs/tasks/tools/)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return build(request.param)
