"""`turnstile check-config FILE`: validate a Serve config file strictly, without Ray, a cluster or a network.

Without this check, unknown keys have no effect, because Ray Serve ignores them, and a wrong value fails only in the
cluster. The command does not check that the models, files and addresses in the config exist.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from deployments.cli.arguments import Failure
from deployments.config_file import ConfigError, load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnstile check-config` to the parser."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a Serve config file, such as serve.yaml")


def run(options: argparse.Namespace) -> int:
    """Validate Serve config files in order, and print one line for each valid file.

    Args:
        options: Parsed arguments of `add_arguments`.

    Returns:
        Exit code 0: all files are valid.

    Raises:
        Failure: A file is invalid. The message has one line for each problem in this file. Later files are not read.
    """
    for path in options.files:
        try:
            load_config(path)
        except ConfigError as error:
            raise Failure(str(error)) from error
        print(f"{path}: keys and values are right (models, files and addresses that they name were not looked at)")
    return 0
