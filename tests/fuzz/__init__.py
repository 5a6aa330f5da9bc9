"""Fuzzing of what reads a stranger's bytes before anything has admitted the stranger.

`targets` are functions of bytes that raise if a parser does what it must not. `python -m tests.fuzz
NAME` gives one of them to atheris, which follows the coverage (libFuzzer); `make fuzz` runs all.
`test_targets` gives them seeds and random changes of these in every test run, so that they stay
valid, and shows that atheris finds a planted bug.
"""
