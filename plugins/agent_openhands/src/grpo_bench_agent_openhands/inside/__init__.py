"""Programs for the inside of a sandbox. They run under the interpreter of the environment, find its libraries and one
another, and nothing of ours."""
