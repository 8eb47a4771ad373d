"""The builders of `ray.serve.llm` under their own names and arguments, and two arguments more: `store`, `compiler`.

`serve run` finds them by the `import_path` of a config file, `deployments.serve_llm.builders:build_openai_app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ConfigDict, Field
from ray.serve import Application

from deployments.app import grammar_compiler
from deployments.arguments import CompilerArguments, model_source
from deployments.serve_llm import engine
from deployments.vllm.settings import BACKEND
from grammar_workers.artifacts.store import DEFAULT_URL

if TYPE_CHECKING:
    from ray.serve.llm import ModelLoadingConfig

    from deployments.serve_llm.config import GuidedConfig

_COMPILER = "GrammarCompiler"


class Arguments(BaseModel):
    """What is ours of the arguments; the others are Ray's, whose builder checks them."""

    model_config = ConfigDict(extra="allow")

    store: str = Field(DEFAULT_URL, description="Where compiled grammars are kept, for compilers and engines.")
    compiler: CompilerArguments = Field(default_factory=CompilerArguments, description="The grammar tier.")

    @property
    def of_ray(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def build_openai_app(args: dict[str, Any]) -> Application:
    """`ray.serve.llm.build_openai_app` with Turnstile in its engines."""
    from ray.serve import llm

    return llm.build_openai_app(_guided(args, "llm_configs"))


def build_pd_openai_app(args: dict[str, Any]) -> Application:
    """`ray.serve.llm.build_pd_openai_app`, prefill apart from decode, with Turnstile in both engines."""
    from ray.serve import llm

    return llm.build_pd_openai_app(_guided(args, "prefill_config", "decode_config"))


def build_dp_openai_app(args: dict[str, Any]) -> Application:
    """`ray.serve.llm.build_dp_openai_app`, attention in data parallel, with Turnstile in every rank."""
    from ray.serve import llm

    return llm.build_dp_openai_app(_guided(args, "llm_config"))


def _guided(args: dict[str, Any], *names: str) -> dict[str, Any]:
    """The arguments of Ray's builder, in which the engines `names`, single ones or lists, are guided."""
    ours = Arguments.model_validate(args)
    tier = GrammarTier(ours)
    given = {name: ours.of_ray[name] for name in names if name in ours.of_ray}
    guided = {
        name: [tier.guided(each) for each in one] if isinstance(one, list | tuple) else tier.guided(one)
        for name, one in given.items()
    }
    return {**ours.of_ray, **guided}


class GrammarTier:
    """The compilers of one application: one for each vocabulary, however many engines have it."""

    def __init__(self, args: Arguments) -> None:
        self._args = args
        self._compilers: dict[str, tuple[str, Application]] = {}

    def guided(self, config: Any) -> GuidedConfig:
        """An engine of Ray Serve LLM whose structured outputs are ours.

        `config`: an `LLMConfig`, its fields, or the path of a YAML file with them.

        Raises ValueError where it asks for another backend, or nobody could compile for it.
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
        """The deployment that compiles for the tokenizer of an engine, and its name."""
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
            # Grammar keys depend on them: engines start anew where they change.
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
