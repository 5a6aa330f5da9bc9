"""The protocol's meaning, pure: commands become outcomes and changes of state, reads slices."""
