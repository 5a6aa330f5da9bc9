"""An audit of streamd's cold store that trusts nothing that the server says.

It reads the objects of a bucket with decoders of its own, written from the project's page on
formats, and imports nothing of `streamd`: an auditor that shared the server's decoders would share
its bugs. It runs wherever Spark runs Python, as an installed package or shipped with
``spark-submit --py-files``.
"""
