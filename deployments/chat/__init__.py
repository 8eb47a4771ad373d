"""Reasoning and tool calls in the formats of chat models: prompts, constraints on the output, and output parsers."""
