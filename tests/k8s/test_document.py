"""What docs/kubernetes.md tells people to write and to run."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deployments.config_file import checked_config
from deployments.haproxy.settings import TRUSTED_PROXIES
from deployments.http.tenants import Tenants
from tests.documents import blocks
from tests.k8s.manifests import K8S, OVERLAYS, REPOSITORY, build, of_kind, ray_groups, ray_service
from tests.k8s.test_manifests import KUBERNETES_VERSION

EXAMPLE = REPOSITORY / "examples" / "kubernetes"
DOCUMENT = (REPOSITORY / "docs" / "kubernetes.md").read_text()


@pytest.fixture
def beside(tmp_path: Path, kustomize: None) -> Path:
    """The folder `my-turnstile` beside a clone called `turnstile`, as in the document."""
    for part in ("k8s", "examples"):
        shutil.copytree(REPOSITORY / part, tmp_path / "turnstile" / part)
    (tmp_path / "my-turnstile").mkdir()
    return tmp_path / "my-turnstile"


def written(folder: Path, chosen: Callable[[dict[str, Any]], bool], overlay: str = "cpu-demo") -> Path:
    """Write the document's own overlay with the parts that are chosen, and return its folder."""
    example, *parts = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)]
    example["resources"] = [name.replace("cpu-demo", overlay) for name in example["resources"]]
    # The other blocks are no parts of a kustomization.
    of_overlay = [part for part in parts if not part.keys() & {"keys", "scrape_configs"}]
    for part in filter(chosen, of_overlay):
        for key, values in part.items():
            example[key] = values if key == "images" else [*example.get(key, []), *values]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(example))
    return folder


def pod(group: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = group["template"]["spec"]
    return spec


def test_the_readers_own_overlay_chooses_the_image_of_every_ray_node(beside: Path) -> None:
    manifests = build(written(beside, lambda part: "images" not in part and "nvidia.com/gpu" not in str(part)))
    (secret,) = {str(pod(group).get("imagePullSecrets")) for group in ray_groups(ray_service(manifests)).values()}
    assert secret == "[{'name': 'registry'}]"
    for name in ("grammar", "model"):
        (container,) = pod(ray_groups(ray_service(manifests))[name])["containers"]
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in container["volumeMounts"]
    head = ray_service(manifests)["spec"]["rayClusterConfig"]["headGroupSpec"]
    assert head["template"]["metadata"]["annotations"] == {"changed": "1"}
    for group in ray_groups(ray_service(manifests)).values():
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "turnstile:0.2.0"
        assert {"name": TRUSTED_PROXIES, "value": "10.244.0.0/16"} in container["env"]
    for kind in ("PodMonitor", "PrometheusRule"):
        (monitoring,) = of_kind(manifests, kind)
        assert monitoring["metadata"]["namespace"] == "turnstile"
    assert all(manifest["metadata"].get("namespace", "turnstile") == "turnstile" for manifest in manifests)


def test_a_larger_model_in_vllm_has_the_image_and_sizes_of_the_document(beside: Path) -> None:
    folder = written(beside, lambda part: "images" in part or "nvidia.com/gpu" in str(part), overlay="vllm")
    group = ray_groups(ray_service(build(folder)))["model"]
    (container,) = pod(group)["containers"]
    assert container["image"] == "registry.example.com/turnstile-vllm:0.2.0"
    assert container["resources"]["limits"] == {"memory": "192Gi", "nvidia.com/gpu": "4"}
    sizes = {volume["name"]: volume["emptyDir"]["sizeLimit"] for volume in pod(group)["volumes"]}
    assert group["resources"]["GPU"] == "4" and sizes == {"cache": "180Gi", "shared-memory": "24Gi"}


def test_the_complete_overlay_is_copied_and_built_as_the_document_says(beside: Path) -> None:
    (commands,) = [block.text for block in blocks("docs/kubernetes.md", "sh") if "cp -r examples" in block.text]
    beside.rmdir()
    subprocess.run(["bash", "-ec", commands], cwd=beside.parent / "turnstile", check=True)
    manifests = build(beside)
    for manifest in manifests:
        if manifest["apiVersion"] in ("v1", "apps/v1", "networking.k8s.io/v1"):
            kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)
    service = ray_service(manifests)
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    assert config == yaml.safe_load((EXAMPLE / "serve.yaml").read_text()) and checked_config(config)[1] == []
    (container,) = ray_groups(service)["grammar"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    keys = Path(config["applications"][0]["args"]["router"]["api_keys"])
    (volume,) = [
        each
        for each in ray_groups(service)["grammar"]["template"]["spec"]["volumes"]
        if each["name"] == mounts[str(keys.parent)]
    ]
    (secret,) = of_kind(manifests, "Secret")
    assert volume["secret"]["secretName"] == secret["metadata"]["name"] and keys.name in secret["data"]
    (ingress,) = of_kind(manifests, "Ingress")
    assert "turnstile-serve-svc" in str(ingress["spec"])


def test_the_keys_of_the_complete_overlay_have_to_be_replaced_as_the_document_says(beside: Path) -> None:
    for key in ("search-example-key", "operations-example-key"):
        one = beside / "one.yaml"
        one.write_text(f"keys: [{{tenant: a, sha256: {hashlib.sha256(key.encode()).hexdigest()}}}]")
        with pytest.raises(ValueError, match=r"published example key.*openssl rand -hex 24.*sha256sum"):
            Tenants.from_file(str(one))
    shutil.copy(EXAMPLE / "keys.yaml", beside)
    with pytest.raises(ValueError, match="published example key"):
        Tenants.from_file(str(beside / "keys.yaml"))
    (commands,) = [block.text for block in blocks("docs/kubernetes.md", "sh") if "for tenant in" in block.text]
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=beside.parent / "turnstile", check=True, capture_output=True, text=True
    )
    made = dict(re.findall(r"^(\w+): (\w+)$", done.stdout, re.MULTILINE))
    tenants = Tenants.from_file(str(beside / "keys.yaml"))
    search = tenants.tenant(made["search"], None)
    assert search.name == "search" and search.limits.concurrent_requests == 16
    assert tenants.tenant(made["operations"], None).administrator


def test_every_overlay_is_presented() -> None:
    assert set(re.findall(r"^\| `k8s/(\S+)`", DOCUMENT, re.MULTILINE)) == set(OVERLAYS)


def test_build_arguments_exist() -> None:
    recipes = "".join((K8S / name).read_text() for name in ("Dockerfile", "vllm.Dockerfile"))
    names = re.findall(r"--build-arg (\w+)=", DOCUMENT)
    assert names
    assert all(f"\nARG {name}=" in recipes for name in names)
