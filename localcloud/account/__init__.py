"""What an account can be asked before it is charged: quotas and prices."""
