"""Conversion of the keywords of a JSON Schema to formulas.

    schema --reader--> formulas, keyword by keyword
              |-- scalar_keywords, container_keywords     formulas of the keywords of each type
              |     |-- schema_keywords, formats          checked values of keywords; patterns of `format`
              |     +-- listed_values, unevaluated        analyses for `uniqueItems` and `unevaluated*`
              |-- references, definitions                 the schemas that `$ref` names, each read once
              +-- unenforced                              keywords that are not enforced, for `on_unsupported: report`

`keywords` lists the supported keywords, by draft and vocabulary.
"""
