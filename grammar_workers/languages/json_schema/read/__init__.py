"""From keywords to formulas.

    schema --reader--> formulas, keyword by keyword
              |-- scalar_keywords, container_keywords     what the keywords of one type assert
              |     |-- keyword_values, formats           checked values; the languages of `format`
              |     |-- subschemas                        the schemas inside, read by the reader in turn
              |     +-- listed_values, unevaluated        what `uniqueItems` and `unevaluated*` need to know
              +-- references, definitions                 what `$ref` names, each read once

`keywords` lists what is supported, by draft and vocabulary.
"""
