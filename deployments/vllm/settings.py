"""Settings of the plugin: environment variables, which reach all of vLLM's processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from grammar_workers.artifacts.store import DEFAULT_URL
from grammar_workers.options import GrammarOptions

PREFIX = "TURNSTILE_"
BACKEND = "outlines"
"""The name of ours in vLLM: that of the backend in whose place it is."""


class PluginSettings(BaseModel):
    """What `TURNSTILE_...` variables say; the names of the fields in capitals follow the prefix."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    store: str = Field(DEFAULT_URL, description="Where compiled grammars are kept, for all of vLLM's processes.")
    url: str | None = Field(
        None,
        description="A Turnstile server that compiles (`/v1/grammars`) into the same store; default: own processes.",
    )
    api_key: str | None = Field(None, description="Sent to `url` as a bearer token.")
    compiler_deployment: str | None = Field(
        None,
        description="A `GrammarCompiler` of the same Ray cluster that compiles, in place of own processes.",
    )
    compiler_app: str | None = Field(None, description="Its Serve application; default: that of the replica that asks.")
    grammar_options: GrammarOptions = Field(GrammarOptions(), description="Of own processes, as JSON.")
    finish_within_budget: bool = Field(
        False, description="Every constrained output is complete within its `max_tokens`, or refused before it begins."
    )
    compile_processes: int = Field(
        1,
        ge=0,
        le=64,
        description="Compilations at a time, in processes of their own; 0: only grammars compiled before are taken.",
    )
    compile_timeout_s: float = Field(30.0, gt=0, description="Longest compilation.")
    compile_cpu_s: float = Field(2.0, gt=0, description="CPU seconds of the longest compilation.")
    trust_remote_code: bool = Field(
        False,
        description="Whether the tokenizer may be Python code of the model's; under vLLM its own argument decides.",
    )
    forced_drafts: int = Field(
        0, ge=0, le=64, description="Forced tokens drafted at a time, where vLLM speculates; 0: none."
    )

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
    """Raises ValueError naming the variable that is wrong."""
    given = {name.removeprefix(PREFIX).lower(): text for name, text in environment.items() if name.startswith(PREFIX)}
    return PluginSettings.model_validate(given)
