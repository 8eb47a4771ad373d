"""The `turnstile` command: one file for each of its subcommands, none of which imports Ray before it needs it."""
