"""The vocabulary that the server, the client and Spark share, and nothing that acts.

`headers` is the one table of HTTP headers to which streamd gives a meaning: their names, which of
them an answer of the server may have, and which of them web pages of other origins may read. The
server takes its CORS answers and its OpenAPI document from it, the client and Spark the names.
`problems` is the one table of errors: the server answers with them, the client knows their codes.

It must never import a part that acts, because the client's users install this part with it.
"""
