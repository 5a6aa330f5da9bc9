"""What all tests share: reproducible Hypothesis runs."""

from hypothesis import settings

# The same examples in every run: a failure here is a failure everywhere.
settings.register_profile("streamd", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("streamd")
