"""Delivery of what subscriptions are due: webhooks, and the ends of leases.

Everything about a subscription is replicated state; only requests to receivers are not. They are
made by the leader alone, in a task that ends with its term (`deliverer`):

    due by log time -> BeginDelivery in the log -> the request -> EndDelivery in the log

Invariants:

- No request is made before its attempt is in the log. So a leader that ends between any two steps
  leaves a lease; when it lapses the wake ends, and another one begins for what is pending.
- A subscription has at most one request under way. One whose wake has ended is broken off.
- Nothing is done for a subscription of which nothing is due: the state has the times in a heap.
- Receivers have a limited time, and places are shared out among hosts (`delivery_queue`): some
  that hang do not hold up the others.
- A request goes to an address that was judged (`targets`, `sender`), and nothing that a receiver
  answers ends the node or leads it elsewhere.

Every node, leader or not, signs and checks with the keys of the state (`keyring`): tokens come back
to any of them. A node that cannot open the keys serves all else.
"""
