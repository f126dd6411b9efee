"""Verdicts on patches: R2E-Gym's own, and one that the patch cannot steer."""
