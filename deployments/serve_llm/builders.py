"""Builders of Ray Serve LLM applications in which Turnstile enforces structured output.

The builders have the names and arguments of the builders in `ray.serve.llm`. Two arguments are added: `store` and
`compiler`. A Serve config file names a builder in `import_path`, such as
`deployments.serve_llm.builders:build_openai_app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, Field
from ray.serve import Application

from deployments.app import grammar_compiler
from deployments.arguments import CompilerArguments, model_source
from deployments.serve_llm import engine
from deployments.vllm.settings import BACKEND
from grammar_workers.artifacts.store import DEFAULT_URL
from grammar_workers.validation import DocumentedModel

if TYPE_CHECKING:
    from ray.serve.llm import ModelLoadingConfig

    from deployments.serve_llm.config import GuidedConfig

_COMPILER = "GrammarCompiler"


class Arguments(DocumentedModel, extra="allow"):
    """Arguments of a builder in this module: the arguments of Ray's builder, and Turnstile's `store` and `compiler`.

    Arguments of Ray's builder are accepted without validation, because Ray's builder validates them.
    """

    store: str = DEFAULT_URL
    """Store of compiled grammars, for compilers and engines."""
    compiler: CompilerArguments = Field(default_factory=CompilerArguments)
    """Settings of the deployment that compiles grammars."""

    @property
    def of_ray(self) -> dict[str, Any]:
        """Arguments for Ray's builder, in a new dictionary: all arguments except `store` and `compiler`."""
        return dict(self.model_extra or {})


def build_openai_app(args: dict[str, Any]) -> Application:
    """Return the application of `ray.serve.llm.build_openai_app`, with structured output enforced by Turnstile.

    Args:
        args: Arguments of Ray's builder (`llm_configs`, ...), and optionally `store` and `compiler` (see `Arguments`).
            An invalid argument raises pydantic's `ValidationError` or `ValueError`.
    """
    from ray.serve import llm

    return llm.build_openai_app(_guided(args, "llm_configs"))


def build_pd_openai_app(args: dict[str, Any]) -> Application:
    """Return the application of `ray.serve.llm.build_pd_openai_app`, with structured output enforced by Turnstile.

    The application runs prefill and decode in separate engines. Turnstile's plugin is in both.

    Args:
        args: Arguments of Ray's builder (`prefill_config`, `decode_config`, ...), and optionally `store` and `compiler`
            (see `Arguments`). An invalid argument raises pydantic's `ValidationError` or `ValueError`.
    """
    from ray.serve import llm

    return llm.build_pd_openai_app(_guided(args, "prefill_config", "decode_config"))


def build_dp_openai_app(args: dict[str, Any]) -> Application:
    """Return the application of `ray.serve.llm.build_dp_openai_app`, with structured output enforced by Turnstile.

    The application runs one engine process per data-parallel rank (attention is data-parallel). Turnstile's plugin is
    in each of these processes.

    Args:
        args: Arguments of Ray's builder (`llm_config`, ...), and optionally `store` and `compiler` (see `Arguments`).
            An invalid argument raises pydantic's `ValidationError` or `ValueError`.
    """
    from ray.serve import llm

    return llm.build_dp_openai_app(_guided(args, "llm_config"))


def _guided(args: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the arguments of Ray's builder. The engine configurations `names`, single ones or lists, are extended."""
    ours = Arguments.model_validate(args)
    tier = GrammarTier(ours)
    given = {name: ours.of_ray[name] for name in names if name in ours.of_ray}
    guided = {
        name: [tier.guided(each) for each in one] if isinstance(one, list | tuple) else tier.guided(one)
        for name, one in given.items()
    }
    return {**ours.of_ray, **guided}


class GrammarTier:
    """Deployments that compile grammars (constraints) for one application, one deployment per tokenizer.

    Engines with equal tokenizers share a deployment, because a compiled grammar depends only on the vocabulary of its
    model.

    Args:
        args: Arguments of the builder. `store` and `compiler` apply to each deployment.
    """

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._compilers: dict[str, tuple[str, Application]] = {}

    def guided(self, config: Any) -> GuidedConfig:
        """Return a copy of an engine configuration of Ray Serve LLM, in which Turnstile enforces structured output.

        The copy selects Turnstile's backend, and has the environment variables of the plugin. It also contains the
        deployment that compiles grammars for the engine's tokenizer. The deployment is created at the first call for a
        tokenizer.

        `ValueError` is raised if the configuration selects another structured outputs backend. It is also raised if the
        tokenizer is in cloud storage (a URL), because compilers cannot read it there.

        Args:
            config: Ray's `LLMConfig`, a dictionary of its fields, or the path of a YAML file with its fields.
        """
        from deployments.serve_llm.config import GuidedConfig

        if isinstance(config, str):
            guided: GuidedConfig = GuidedConfig.from_file(config)
        elif isinstance(config, BaseModel):
            guided = GuidedConfig.model_validate(config.model_dump(exclude_unset=True))
        else:
            guided = GuidedConfig.model_validate(config)
        name, compiler = self._compiler(guided)
        guided.engine_kwargs = {**guided.engine_kwargs, "structured_outputs_config": _backend(guided)}
        guided.runtime_env = {**(guided.runtime_env or {}), "env_vars": self._environment(guided, name)}
        return guided.with_compiler(compiler)

    def _compiler(self, config: GuidedConfig) -> tuple[str, Application]:
        """Return the name of the deployment that compiles for the tokenizer of an engine, and the deployment."""
        loading = cast("ModelLoadingConfig", config.model_loading_config)  # the validated field
        if isinstance(loading.model_source, str):
            loading.model_source = model_source(loading.model_source)
        tokenizer = config.engine_kwargs.get("tokenizer") or loading.model_source or loading.model_id
        if not isinstance(tokenizer, str) or "://" in tokenizer:
            raise ValueError(
                f"{loading.model_id}: its tokenizer is in cloud storage, which compilers cannot read; "
                "name one in `engine_kwargs.tokenizer`"
            )
        if tokenizer not in self._compilers:
            name = f"{_COMPILER}:{loading.model_id.replace('/', '--')}" if self._compilers else _COMPILER
            application = grammar_compiler(self._args.compiler, tokenizer, self._args.store, name)
            self._compilers[tokenizer] = name, application
        return self._compilers[tokenizer]

    def _environment(self, config: GuidedConfig, compiler: str) -> dict[str, str]:
        given: dict[str, str] = (config.runtime_env or {}).get("env_vars") or {}
        return {
            **given,
            "TURNSTILE_VLLM": "1",
            "TURNSTILE_STORE": self._args.store,
            "TURNSTILE_COMPILER_DEPLOYMENT": compiler,
            # Grammar keys depend on the options, so engines restart if the options change.
            "TURNSTILE_GRAMMAR_OPTIONS": self._args.compiler.options.model_dump_json(),
            "RAYLLM_VLLM_ENGINE_CLS": engine.PATH,
        }


def _backend(config: GuidedConfig) -> dict[str, Any]:
    given = config.engine_kwargs.get("structured_outputs_config") or {}
    if given.get("backend", BACKEND) != BACKEND:
        raise ValueError(
            f"{config.model_id}: structured_outputs_config.backend is {given['backend']!r}; leave it out, "
            f"Turnstile takes the place of {BACKEND!r}"
        )
    return {**given, "backend": BACKEND}
