"""A job whose progress anyone may follow who has its URL: two applications, and three readers."""
