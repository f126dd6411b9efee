"""Programs of a sandbox's own, each a file that needs the standard library only: what holds it, what goes in."""
