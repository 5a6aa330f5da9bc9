"""An agent whose memory is a stream: killed at any moment, it resumes where it was."""
