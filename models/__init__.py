"""The embedded default model and the program that makes it."""
