"""The reference is current, and has everything that the code has."""

from __future__ import annotations

import functools
import re
import sys

import pytest
from pydantic import BaseModel

from deployments.arguments import AppArguments, CompilerArguments, ReplicaArguments, RouterArguments
from deployments.cli.main import parser
from deployments.http.outcomes import SERVER_CODES
from deployments.openai.protocol import ChatCompletionBody, CompletionBody
from deployments.vllm.sampling import DIFFERENT, REFUSED
from docs.generator import documents as reference
from docs.generator.errors import CODES, NO, WITHOUT_CODE, found_codes
from docs.generator.http import openapi
from gpu_workers.config import EngineConfig, VllmEngineConfig
from gpu_workers.model.attention import IMPLEMENTATION
from gpu_workers.request import SamplingParameters
from tests.documents import REPOSITORY
from tests.k8s.test_monitoring import exported

documents = functools.cache(reference.documents)
NAMES = ("http", "config", "command-line", "metrics", "engines", "errors", "modules")  # features: tests of its own
MODELS = (AppArguments, RouterArguments, CompilerArguments, ReplicaArguments, EngineConfig, VllmEngineConfig)


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_document_is_current(name: str) -> None:
    path = f"reference/{name}.md"
    committed, current = (REPOSITORY / "docs" / path).read_text(), documents()[path]
    if name == "command-line" and sys.version_info >= (3, 12):  # argparse breaks other lines
        committed, current = (" ".join(text.split()) for text in (committed, current))
    assert committed == current, "run: make reference"


def test_no_document_is_missing() -> None:
    committed = {f"reference/{path.name}" for path in (REPOSITORY / "docs" / "reference").iterdir()}
    assert committed == documents().keys() - {"features.md"} == {f"reference/{name}.md" for name in NAMES}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_argument_is_in_it(model: type[BaseModel]) -> None:
    missing = [name for name in model.model_fields if f"| `{name}` |" not in documents()["reference/config.md"]]
    assert missing == []


def test_every_setting_of_a_request_is_in_the_table_of_engines() -> None:
    rows = re.findall(r"^\| `(\w+)` \| yes \|", documents()["reference/engines.md"], re.MULTILINE)
    of_clients = set(SamplingParameters.model_fields) - {"probe"}
    assert set(rows) == of_clients and set(REFUSED) | set(DIFFERENT) <= set(rows)


def test_every_path_and_field_of_the_api_is_in_it() -> None:
    text = documents()["reference/http.md"]
    for path, methods in openapi()["paths"].items():
        assert all(f"### `{method.upper()} {path}`" in text for method in methods)
    for model in (ChatCompletionBody, CompletionBody):
        section = text[text.index(f"### {model.__name__}\n") :].partition("\n### ")[0]
        assert all(f"| `{field.alias or name}` |" in section for name, field in model.model_fields.items())


def test_every_subcommand_is_in_it() -> None:
    names = re.findall(r"^ {4}(\w+)(?: |$)", parser().format_help(), re.MULTILINE)
    assert names
    assert re.findall(r"^## `turnstile (\w+)`", documents()["reference/command-line.md"], re.MULTILINE) == names


def test_every_metric_is_in_it() -> None:
    ours, in_vllm = (
        re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
        for text in documents()["reference/metrics.md"].split("\n## In vLLM\n")
    )
    assert {f"ray_{name}" for name in ours} == exported() - {f"ray_{IMPLEMENTATION}"}
    assert {"turnstile_mask_fills_total", "turnstile_token_accept_slowest_seconds"} <= set(in_vllm)
    assert len(in_vllm) == 2 * 3


def test_every_error_has_its_advice() -> None:
    found, without = found_codes()
    assert found.keys() == CODES.keys() and without | {405} == WITHOUT_CODE.keys()
    assert all(found[code] <= {500, 503} for code in SERVER_CODES), "what the alert on errors of the server watches"
    for code, (_, repeat, _) in CODES.items():
        assert repeat == NO or min(found[code]) in (408, 409, 429, 500, 502, 503), code
    assert found["router_lost"] == {502, 503, 504} and found["unavailable"] == {503}


def test_the_document_has_no_status_that_is_never_answered() -> None:
    """FastAPI documents 422 by itself; bad bodies are 400 here."""
    document = openapi()
    for methods in document["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]
    assert not {"HTTPValidationError", "ValidationError"} & set(document["components"]["schemas"])


def test_only_metrics_of_the_router_lack_the_labels_of_serve() -> None:
    makers = {
        "deployments": "ray.serve.metrics",
        "gpu_workers": "ray.util.metrics",
        "grammar_workers": "ray.util.metrics",
    }
    for package, other in makers.items():
        assert not [path for path in (REPOSITORY / package).rglob("*.py") if f"from {other} import" in path.read_text()]
