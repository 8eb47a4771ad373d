"""The embedded models (turnstile-tiny, its EAGLE-3 head, turnstile-shakespeare) and the programs that train them."""
