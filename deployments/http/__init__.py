"""Parts of the HTTP application: strict parsing of bodies, error responses, API keys, rate limits and deadlines."""
