"""Finite automata over characters, and the way to bytes.

    charset --> dfa --minimize--> minimal dfa --utf8_dfa--> the same language over the bytes of UTF-8
                  |-- product     several at once, state by state
                  +-- row_hash    equal rows of transitions once

May import the modules beside the packages only.
"""
