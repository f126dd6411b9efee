"""Simulated runs: parts that answer after modelled times, and what makes models of them."""
