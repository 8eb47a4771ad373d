"""A server whose compiler takes as long as it is told to: the launcher, with another application.

    python -m benchmarks.slow_compiler CONFIG --port N

What `benchmarks.slow_grammars` holds a server up with, and no way to serve: a choice "compile for 30 s" keeps its
process busy for so long, and everything else compiles as usual.

No `from __future__ import annotations` here: Serve finds the type of the builder's arguments in the live annotation.
"""

from typing import Any

from ray.serve import Application

from benchmarks.slow_compilation import LOAD
from deployments import app, config_file
from deployments.arguments import AppArguments
from deployments.local import launcher
from grammar_workers.service import deployment


class GrammarCompiler(deployment.GrammarCompiler):
    """The real one over such processes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        deployment.LOAD_COMPILER = LOAD
        super().__init__(*arguments, **options)


def build_app(args: AppArguments) -> Application:
    """The usual application."""
    app.GrammarCompiler = GrammarCompiler  # type: ignore[misc]
    return app.build_app(args)


if __name__ == "__main__":
    config_file.IMPORT_PATH = "benchmarks.slow_compiler:build_app"
    launcher.main()
