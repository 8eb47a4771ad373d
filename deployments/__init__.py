"""HTTP server of Turnstile, which serves LLMs with structured output on Ray Serve.

The package contains the router (the HTTP ingress), the builder of the Serve application, a launcher for one machine,
and the command line `turnstile`. It also contains plugins that add Turnstile's constraints to vLLM and SGLang.
"""
