"""The router: compiles and prefills at once, retries, streams.

router --service--> body, `grammar_keys`, `grammar_admission` (whose turn it is)
                 --tiers--> compilers and model replicas
grammars: /v1/grammars
"""
