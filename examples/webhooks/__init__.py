"""A receiver of webhooks that stores each delivery once, however often it is sent."""
