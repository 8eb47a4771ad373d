"""The meaning of specifications: each kind becomes a language of characters or an automaton over bytes.

    specification --combine--> json_schema/                            --+--> an automaton over bytes (`pushdown`),
                               regex/, parts, token_pattern            --+    or a rule graph (`cfg`)
                               cfg/, tags/                             --+
                               positions, automaton, banned_words      --+

`banned_in_json` takes words out of the strings of JSON; `all_of` is an intersection, where that is exact.
`scalar_values` tells characters from surrogates.

May import `dfa`, `pushdown`, `vocabulary` and the modules beside the packages.
"""
