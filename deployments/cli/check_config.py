"""`turnstile check-config FILE`: read a Serve config file strictly, without Ray, a cluster or a network.

Serve ignores keys that it does not know, and a cluster reports a wrong value only after the file was applied.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from deployments.cli.arguments import Failure
from deployments.config_file import ConfigError, load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `run` reads."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a Serve config file, such as serve.yaml")


def run(options: argparse.Namespace) -> int:
    """Print one line for each file. Raises `Failure` with one line for each problem in the first wrong file."""
    for path in options.files:
        try:
            load_config(path)
        except ConfigError as error:
            raise Failure(str(error)) from error
        print(f"{path}: keys and values are right (models, files and addresses that they name were not looked at)")
    return 0
