"""The control of hosts, with real programs that stand in for systemctl, ssh and kubectl."""
