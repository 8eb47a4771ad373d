"""Settings of the plugins for vLLM and SGLang, read from environment variables `TURNSTILE_...`.

Environment variables are used because all processes of vLLM inherit them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from grammar_workers.artifacts.store import DEFAULT_URL
from grammar_workers.options import GrammarOptions
from grammar_workers.validation import DocumentedModel

PREFIX = "TURNSTILE_"
# Name of Turnstile in vLLM, which is the name of the backend that it replaces.
BACKEND = "outlines"


class PluginSettings(DocumentedModel, extra="ignore", frozen=True):
    """Settings of the plugins for vLLM and SGLang.

    The environment variable of a field is `TURNSTILE_` and the name of the field in upper case, such as
    TURNSTILE_STORE.
    """

    store: str = DEFAULT_URL
    """Store of compiled grammars, for all processes of vLLM."""
    url: str | None = None
    """URL of a Turnstile server with the same store. This server compiles (`/v1/grammars`). Default: compile processes
    of vLLM's node compile."""
    api_key: str | None = None
    """Sent to `url` as a bearer token."""
    compiler_deployment: str | None = None
    """Name of a deployment `GrammarCompiler` in the same Ray cluster. This deployment compiles. Default: compile
    processes of vLLM's node compile."""
    compiler_app: str | None = None
    """Serve application of `compiler_deployment`. Default: the application in which vLLM runs."""
    grammar_options: GrammarOptions = GrammarOptions()
    """Grammar options as JSON, for grammars that vLLM's node compiles."""
    finish_within_budget: bool = False
    """`true`: every constrained output is complete within `max_tokens`. If this is impossible, the request is
    rejected."""
    compile_processes: int = Field(1, ge=0, le=64)
    """Number of compile processes on vLLM's node. 0: only compiled grammars are accepted."""
    compile_timeout_s: float = Field(30.0, gt=0)
    """Maximum duration of a compilation in seconds."""
    compile_cpu_s: float = Field(2.0, gt=0)
    """Maximum CPU time of a compilation in seconds."""
    trust_remote_code: bool = False
    """`true`: the tokenizer may run Python code of the model. In vLLM, vLLM's own option decides this."""
    forced_drafts: int = Field(0, ge=0, le=64)
    """Maximum number of forced tokens that are drafted per step of vLLM's speculative decoding. 0: none."""

    @field_validator("grammar_options", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _one_compiler(self) -> PluginSettings:
        if self.url is not None and self.compiler_deployment is not None:
            raise ValueError("TURNSTILE_URL and TURNSTILE_COMPILER_DEPLOYMENT exclude each other")
        return self


def read_settings(environment: Mapping[str, str] = os.environ) -> PluginSettings:
    """Return the settings of the plugin from environment variables.

    If a value is invalid, pydantic's `ValidationError` (a ValueError) is raised. The error names the field.

    Args:
        environment: Variables by name. If the variable of a field is missing, the field has its default. Variables
            without a field are ignored.
    """
    given = {name.removeprefix(PREFIX).lower(): text for name, text in environment.items() if name.startswith(PREFIX)}
    return PluginSettings.model_validate(given)
