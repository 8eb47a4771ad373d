"""What runs at every step: from an automaton and a text so far to the mask of allowed tokens.

automaton or rule graph --recognizer--> pushdown_recognizer / cfg_recognizer --kernels/--> next state, mask row
                        --token_fsm--> states by number, rows kept once by content (`mask_store`)
masks: rows of a batch;  export: tables for a device;  examples: texts drawn at random;  spelling: tokens of a text
May import every package but `service`.
"""
