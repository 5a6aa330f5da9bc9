"""A table of departures, kept by the State Protocol and shown live."""
