"""One generation: what is known of it, and what it may do next.

sequence: its state;  output_text: its text, and what ends it
drafts: guesses at its next tokens;  step_result: what the pass that checked them left behind
"""
