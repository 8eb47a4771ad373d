"""Values that must differ from earlier ones of the same container: `uniqueItems`, and names that are counted.

`values` (what has been read, by what it means) <- `earlier` (sets of values) <- `histories` (earlier values of each
open container) <- `steps` (one byte) <- `ways` (whether and how a text can still end) <- `rows` (forbidden tokens) <-
`recognizer`. All count their work in one `Budget`.
"""
