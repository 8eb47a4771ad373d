"""Endpoints of Anthropic's Messages API: request bodies, their translation into chat completions, and responses."""
