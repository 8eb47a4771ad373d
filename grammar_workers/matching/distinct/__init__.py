"""Unique items: JSON values that must differ from the earlier (*seen*) values of their array or object.

The package enforces `uniqueItems`, except for arrays whose items have a short `enum` (usually at most five values). For
these arrays, the compiler makes states for each set of used values, and `PushdownRecognizer` suffices. The package also
enforces that property names are unique in objects that count their properties. Each module uses only the modules above
it in this list:

`numbers`, `values`   JSON values as they are read; equal values (1 and 1.0) have equal numbers
`earlier`             sets of seen values
`histories`           the seen values of each open container (array or object)
`steps`               reads one byte
`ways`                completions: whether an output can still be completed, and a short completion
`rows`                the tokens to remove from a mask
`recognizer`          the `Recognizer`

The work of all modules counts toward one `Budget`.
"""
