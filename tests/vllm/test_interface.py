"""What the plugin imports, wraps and implements of vLLM: in the installed release, and by source in the last one."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import vllm

from deployments.vllm import installation
from deployments.vllm.handlers import _HANDLERS
from deployments.vllm.interface import FIRST_VLLM, LAST_VLLM, UnknownInterfaceError
from deployments.vllm.requests import CONSTRAINTS, OPTIONS
from tests.vllm.server import ROOT
from tests.vllm.sources import NoSourceError, vllm_source

FUNCTIONS = {
    ("vllm.v1.structured_output", "StructuredOutputManager.__init__"): "self vllm_config",
    ("vllm.v1.structured_output", "StructuredOutputManager.grammar_init"): "self request",
    ("vllm.v1.structured_output.backend_outlines", "validate_structured_output_request_outlines"): "params",
    ("vllm.v1.core.sched.scheduler", "Scheduler.update_draft_token_ids"): "self draft_token_ids",
    ("vllm.v1.engine.async_llm", "AsyncLLM.__init__"): "self vllm_config",
    ("vllm.v1.engine.async_llm", "AsyncLLM.add_request"): "self request_id prompt params",
    ("vllm.v1.engine.async_llm", "AsyncLLM.generate"): "self prompt sampling_params",
    ("vllm.v1.engine.input_processor", "InputProcessor.process_inputs"): "self request_id prompt params",
    ("vllm.v1.engine.llm_engine", "LLMEngine.__init__"): "self vllm_config",
    ("vllm.v1.metrics.prometheus", "get_prometheus_registry"): "",
    **{(f"vllm.entrypoints.{module}", f"{name}.{method}"): "self request" for module, name, method in _HANDLERS},
}
"""What the plugin wraps or replaces, and its first parameters."""

FIELDS = {
    ("vllm.sampling_params", "StructuredOutputsParams"): {*CONSTRAINTS, *OPTIONS, "_backend"},
    ("vllm.sampling_params", "SamplingParams"): {"structured_outputs", "min_tokens", "max_tokens", "skip_clone"},
    ("vllm.v1.outputs", "DraftTokenIds"): {"req_ids", "draft_token_ids"},
    ("vllm.v1.structured_output.request", "StructuredOutputRequest"): {"params", "reasoning_ended"},
}
"""What it reads and writes."""


@pytest.fixture(scope="module", params=["installed", f"{LAST_VLLM}.0"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that has vLLM's package."""
    if request.param == "installed":
        return Path(vllm.__file__).parents[1]
    try:
        return vllm_source(request.param, tmp_path_factory.mktemp("source"))
    except NoSourceError as error:
        pytest.skip(f"pip has no source of vLLM {request.param} here: {error}")


@functools.cache
def parsed(source: Path, module: str) -> ast.Module:
    base = source.joinpath(*module.split("."))
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    return ast.parse(path.read_text())


def definition(source: Path, module: str, name: str) -> ast.AST:
    """The class or function `name` (with dots) of a module."""
    found: ast.AST = parsed(source, module)
    for part in name.split("."):
        found = next(node for node in ast.walk(found) if getattr(node, "name", None) == part)
    return found


def parameters(function: ast.AST) -> list[str]:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def imported() -> Iterator[tuple[str, str]]:
    """What our packages import from vLLM."""
    for package in ("deployments", "gpu_workers"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                    yield from ((str(node.module), alias.name) for alias in node.names)


def has_name(source: Path, module: str, name: str) -> bool:
    """Whether `from module import name` finds something: a module, or what the module binds, lazily or not."""
    if (source.joinpath(*module.split("."), name)).exists() or source.joinpath(
        *module.split("."), f"{name}.py"
    ).exists():
        return True
    names = set()
    for node in ast.walk(parsed(source, module)):
        if isinstance(node, ast.Name | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.alias):
            names.add(node.id if isinstance(node, ast.Name) else (getattr(node, "asname", None) or node.name))
        elif isinstance(node, ast.Constant):
            names.add(str(node.value))
    return name in names


def test_everything_imported_is_there(source: Path) -> None:
    uses = sorted(set(imported()))
    assert len(uses) > 10
    assert [use for use in uses if not has_name(source, *use)] == []


@pytest.mark.parametrize("name", installation._METHODS)
def test_the_base_classes_have_our_methods_and_no_others(source: Path, name: str) -> None:
    base = definition(source, "vllm.v1.structured_output.backend_types", name)
    assert isinstance(base, ast.ClassDef)
    found = {node.name: tuple(parameters(node)) for node in base.body if isinstance(node, ast.FunctionDef)}
    assert found == installation._METHODS[name]


@pytest.mark.parametrize(("module", "name"), FUNCTIONS)
def test_what_is_wrapped_takes_what_it_took(source: Path, module: str, name: str) -> None:
    expected = FUNCTIONS[module, name].split()
    assert parameters(definition(source, module, name))[: len(expected)] == expected


@pytest.mark.parametrize(("module", "name"), FIELDS)
def test_fields_have_their_names(source: Path, module: str, name: str) -> None:
    found = definition(source, module, name)
    assert isinstance(found, ast.ClassDef)
    fields = {
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    assert FIELDS[module, name] <= fields


def test_drafts_reach_the_scheduler_before_they_are_validated(source: Path) -> None:
    """`update_draft_token_ids` is the core's call, and validation is inside of it."""
    engine = ast.unparse(parsed(source, "vllm.v1.engine.core"))
    assert "self.scheduler.update_draft_token_ids(draft_token_ids)" in engine
    assert "validate_tokens" in ast.unparse(
        definition(source, "vllm.v1.core.sched.scheduler", "Scheduler.update_draft_token_ids")
    )


def test_another_interface_is_refused_with_the_range() -> None:
    class Types:
        class StructuredOutputGrammar:
            __abstractmethods__ = frozenset({"accept_tokens"})

    with pytest.raises(
        UnknownInterfaceError, match=rf"vLLM 9\.9 \(Turnstile supports vLLM {FIRST_VLLM} to {LAST_VLLM}\)"
    ):
        installation.check_interface(Types, "9.9")
