"""Ray Serve LLM with Turnstile's masks in its engines, and the grammar tier in the same application.

Its router -> its engine replicas (vLLM, with the plugin of `deployments.vllm`) -> GrammarCompiler, by Serve handle
"""
