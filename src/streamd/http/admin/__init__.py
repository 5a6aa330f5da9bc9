"""Operations: the handlers, functions from an `Operator` to an `Answer`, and the bodies they take.

An ordinary Quart application calls them, and `http.ops` calls that; `operator` turns what a handler
raises into the errors of every route.

Read on in docs/operations.md.
"""
