"""The cold store's formats, and objects in a directory or in S3. Calls block."""
