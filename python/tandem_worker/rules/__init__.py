"""The built-in rewards (--rm-type), which score a response by a rule, and the checks that they are made of."""
