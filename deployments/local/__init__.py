"""Local server: `make serve` and `turnstile serve` start Turnstile on this machine, with a Ray instance of its own.

`launcher` parses the command line and sets environment variables. `preflight` and `model_source` check the config
before the start. `server` starts Ray, Serve and HAProxy. `stop` rejects new requests, waits for open requests, and ends
all processes.
"""
