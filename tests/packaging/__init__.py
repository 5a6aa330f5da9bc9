"""What people install: that it is whole, works without the repository, and is built reproducibly.

Everything that is built or installed here is marked long. `installed` starts what was installed.
"""
