"""Formats of chat models: how they write thoughts and tool calls, and how both are read from their output."""
