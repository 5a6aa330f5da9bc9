"""``streamd`` for operators: the commands beside ``serve`` that are not a client's."""
