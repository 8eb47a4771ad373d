from __future__ import annotations

import os

import pytest

from tests.k8s.manifests import K8S, OVERLAYS, Manifest, build, kustomize_command


@pytest.fixture(scope="session")
def kustomize() -> None:
    """Skips without a tool that builds overlays; in CI that is a failure."""
    if kustomize_command() is None:
        reason = "needs kubectl or kustomize on PATH (https://kubernetes.io/docs/tasks/tools/)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest, kustomize: None) -> list[Manifest]:
    """The objects of each overlay in turn."""
    return build(K8S / request.param)
