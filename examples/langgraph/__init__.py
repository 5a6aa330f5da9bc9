"""A checkpointer for LangGraph whose threads are streams, and an agent that uses it."""
