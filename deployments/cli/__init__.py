"""The `turnstile` command line: serve, check, check-config, generate, bench and precompile.

`main` parses the command line. Each subcommand is a module with two functions: `add_arguments` adds the arguments of
the subcommand to a parser, and `run` executes the subcommand and returns the exit code. Only subcommands that need Ray
import it.
"""
