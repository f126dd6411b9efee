"""What runs inside the sandbox: a fork server and the children that execute candidate code.

A fresh interpreter (no site packages, a clean environment) loads this package under the name ``inside``, with nothing
of the plugin around it, shuts itself in, and then answers one request at a time. It imports the standard library only
and never holds an expected value: those stay with the process that grades.
"""
