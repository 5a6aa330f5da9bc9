"""A cluster from the cold store alone; and what can be restored, told and verified."""
