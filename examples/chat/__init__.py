"""A chat whose answers stream to the page and survive its reload."""
