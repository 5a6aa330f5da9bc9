"""Operations: the handlers, functions from an `Operator` to an `Answer`, and the bodies they take.

An ordinary Quart application (`http.ops`) calls them, and `asgi_bridge` calls that; `answers` turns
what a handler raises into the errors of every route.

Read on in docs/operations.md.
"""
