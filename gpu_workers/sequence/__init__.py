"""One generation (a prompt and its output): its state, its drafts and its text.

sequence:     state of a generation, and the rules by which it advances and ends
output_text:  decodes the output, and detects the tokens and strings that end it
drafts:       proposed next tokens, which a forward pass verifies
step_result:  hidden states that the last forward pass computed for the generation
particles:    conditional sampling, over several generations
times:        timestamps of the events in a generation
"""
