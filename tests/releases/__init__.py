"""This version opens what released versions have written.

Formats on disk, between nodes and in the store are promises. Each release is represented by a data
directory that it left in use, with its cold store inside, and by what it said its streams hold.
Add one at a release: `python -m tests.releases.record NAME`.
"""
