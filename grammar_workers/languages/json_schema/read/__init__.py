"""From keywords to formulas.

    schema --reader--> formulas;  `references` finds what `$ref` names, `definitions` what is read once,
                                  `unevaluated` what keywords beside leave over, `listed_values` enum and const

`keywords` lists what is supported, `formats` the languages of `format`.
"""
