"""Turnstile as a grammar backend of SGLang: `--grammar-backend turnstile`.

Scheduler process:  a request's constraint --admission--> artifact in the store --loader--> automaton
                    --gpu_workers.vllm--> one request's states -> rows of SGLang's mask

Compilations run in compile processes or in a Turnstile server, set by the same variables as for vLLM
(`deployments.vllm.settings`); SGLang waits for them on threads and keeps a request out of the batch meanwhile. Of the
scheduler processes that run the same batches (tensor and pipeline parallel), one compiles (`ranks`).
"""
