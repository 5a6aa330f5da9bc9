"""A node: its group, its tiers and its readers, brought up and down in order."""
