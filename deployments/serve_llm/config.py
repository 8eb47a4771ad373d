"""Configuration of one engine of Ray Serve LLM (`ray.serve.llm`), with the deployment that compiles its grammars.

The import of this module fails if Ray Serve LLM is not installed.
"""

from __future__ import annotations

from typing import Any

from pydantic import PrivateAttr
from ray.serve.llm import LLMConfig


class GuidedConfig(LLMConfig):
    """Ray's `LLMConfig` (configuration of one engine) that also holds the grammar compiler deployment of the engine.

    Ray Serve deploys every bound deployment that is found in the arguments of another deployment. This configuration is
    an argument of Ray's engine deployment. So Ray Serve deploys the compiler without changes to Ray's code.
    """

    _compiler: Any = PrivateAttr(None)

    def with_compiler(self, compiler: Any) -> GuidedConfig:
        """Store the compiler deployment in this configuration, in place.

        Args:
            compiler: The deployment `GrammarCompiler`, bound to its arguments (result of Ray Serve's `bind`).

        Returns:
            This configuration.
        """
        self._compiler = compiler
        return self
