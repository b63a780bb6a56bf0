"""How long a test waits for what has to come."""

PATIENCE_S = 300.0
"""Nothing takes so long, however slow the machine is and however busy: a test that waits in vain has found a
hang.
"""
