"""Tests of examples/: each program is run as a user would run it."""
