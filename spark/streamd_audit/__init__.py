"""An audit of streamd's cold store that trusts nothing of the server.

It reads the objects of a bucket by decoders of its own, written from the project's page on formats,
and imports nothing of `streamd`: an auditor that shared the server's decoders would share its
bugs. It runs wherever Spark runs Python, as a package installed there or shipped with
``spark-submit --py-files``.
"""
