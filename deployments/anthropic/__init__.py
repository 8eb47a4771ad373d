"""Anthropic's Messages API: the same generations as those of chat completions, in its words."""
