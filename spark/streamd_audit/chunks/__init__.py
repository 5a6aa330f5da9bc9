"""Whether packs hold what states refer to and the log appended.

`pack` judges the bytes of one pack by the references to its slices; `coverage` judges everything
that is known about one stream's records, from packs, from a state's own rows and from the log.
"""
