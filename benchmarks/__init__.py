"""Benchmarks: one program per claim, which compares Turnstile with other libraries. `README.md` lists them."""
