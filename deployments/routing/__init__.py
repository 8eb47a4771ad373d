"""Request processing of the router: HTTP handlers, calls to the grammar compilers and model replicas, and retries.

service:            handlers of the HTTP paths, except `/v1/grammars`
grammars:           handlers of `/v1/grammars`
grammar_keys:       computes the key (hash) of a constraint, for `service` and `grammars`
tiers:              client of the grammar compilers and model replicas; uses the three modules below
grammar_admission:  limits the number of uncached grammars (constraints) per tenant (client)
retries:            repeats calls whose replica has failed
thoughts:           limits reasoning tokens
"""
