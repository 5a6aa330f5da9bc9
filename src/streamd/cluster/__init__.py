"""A node among its peers: founding and joining, members, snapshots, and the lost majority."""
