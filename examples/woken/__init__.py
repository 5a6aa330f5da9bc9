"""An agent that sleeps until it is asked something: killed at any moment, another one goes on."""
