"""What runs in the child process: it evaluates an expression once for each set of names and prints a line for each.

It is told the names only. What they should give stays with the environment, out of the expression's reach.
"""

import json
import resource
import sys

MEMORY = 512 * 2**20


def main() -> None:
    request = json.load(sys.stdin)
    limits = {resource.RLIMIT_CPU: request["cpu_s"], resource.RLIMIT_AS: MEMORY, resource.RLIMIT_FSIZE: 0,
              resource.RLIMIT_CORE: 0}
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    for names in request["given"]:
        try:
            said = json.dumps(eval(request["expression"], names), sort_keys=True)
        except BaseException as error:
            said = type(error).__name__
        print(said)


main()
