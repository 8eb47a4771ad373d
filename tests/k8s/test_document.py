"""What docs/kubernetes.md tells people to write and to run."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from deployments.haproxy.settings import TRUSTED_PROXIES
from tests.k8s.manifests import K8S, OVERLAYS, REPOSITORY, build, of_kind, ray_groups, ray_service

DOCUMENT = (REPOSITORY / "docs" / "kubernetes.md").read_text()


@pytest.mark.usefixtures("kustomize")
def test_the_readers_own_overlay_chooses_the_image_of_every_ray_node(tmp_path: Path) -> None:
    example, trusting, addition = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert "../turnstile/k8s/overlays/cpu-demo" in example
    demo = K8S / "overlays" / "cpu-demo"
    overlay = os.path.relpath(demo, tmp_path.resolve())
    (tmp_path / "kustomization.yaml").write_text(example.replace("../turnstile/k8s/overlays/cpu-demo", overlay))
    groups = ray_groups(ray_service(build(tmp_path)))
    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups.values()}
    assert images == {"turnstile:0.2.0"}
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    (trusted / "kustomization.yaml").write_text(f"resources: [{os.path.relpath(demo, trusted.resolve())}]\n{trusting}")
    for group in ray_groups(ray_service(build(trusted))).values():
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": TRUSTED_PROXIES, "value": "10.244.0.0/16"} in container["env"]
    monitored = tmp_path / "monitored"
    monitored.mkdir()
    addition = addition.replace("../../components", os.path.relpath(K8S / "components", monitored.resolve()))
    (monitored / "kustomization.yaml").write_text(
        f"resources: [{os.path.relpath(demo, monitored.resolve())}]\n{addition}"
    )
    assert of_kind(build(monitored), "PodMonitor")


def test_every_overlay_is_presented() -> None:
    assert set(re.findall(r"^\| `k8s/(\S+)`", DOCUMENT, re.MULTILINE)) == set(OVERLAYS)


def test_build_arguments_exist() -> None:
    recipes = "".join((K8S / name).read_text() for name in ("Dockerfile", "vllm.Dockerfile"))
    names = re.findall(r"--build-arg (\w+)=", DOCUMENT)
    assert names
    assert all(f"\nARG {name}=" in recipes for name in names)
