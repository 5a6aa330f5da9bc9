"""The console: what is served, its JavaScript, and its pages in Chromium against a real cluster."""
