"""The site of the documentation: hooks of its build, and the pages that are generated.

`hooks` is called by MkDocs and adds what the pages of docs/ link to outside of it.

`reference` writes docs/reference from where the text is kept already: the sample configuration, the
help of each command, and the calls that register metrics. `make fix` runs it, and a test compares.
Errors and paths of HTTP have pages written by hand, docs/errors.md and docs/api.md, whose tables
tests compare with the code.
"""
