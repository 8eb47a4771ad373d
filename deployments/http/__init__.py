"""The HTTP application: routes, errors with OpenAI's body, tenants and limits, event streams."""
