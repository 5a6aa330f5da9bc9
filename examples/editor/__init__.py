"""A text that several people edit at once, by Yjs over a stream."""
