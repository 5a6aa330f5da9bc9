"""Small programs to start from; each has a folder, a README and a test in tests/examples."""
