"""The configuration of one engine of Ray Serve LLM; imported only where that is installed."""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr
from ray.serve.llm import LLMConfig


class GuidedConfig(LLMConfig):
    """Ray's `LLMConfig` that carries the deployment which compiles for its engine.

    Serve deploys whatever bound deployments it finds in the arguments of another one, and this is an argument of
    Ray's own deployments: so the application has one more without a change to theirs.
    """

    _compiler: Any = PrivateAttr(None)

    def with_compiler(self, compiler: Any) -> GuidedConfig:
        self._compiler = compiler
        return self
