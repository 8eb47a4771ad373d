"""Applications of Ray Serve LLM (`ray.serve.llm`) in which Turnstile enforces structured output.

Ray's router calls Ray's engine replicas, which run vLLM. The plugin of `deployments.vllm` computes the masks in each
replica. To compile a grammar, the plugin calls the deployment `GrammarCompiler` of the application.
"""
