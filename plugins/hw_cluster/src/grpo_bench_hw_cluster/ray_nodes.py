"""Run as a program: prints the nodes of the Ray cluster at RAY_ADDRESS as one line of JSON, with their labels."""

from __future__ import annotations

import json
import os

NODE, DOMAIN = "grpo-bench-node", "grpo-bench-domain"


def main() -> None:
    import ray

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, configure_logging=False)
    nodes = [{"name": node["Labels"].get(NODE) or node["NodeManagerHostname"],
              "domain": node["Labels"].get(DOMAIN, ""), "gpus": node["Resources"].get("GPU", 0)}
             for node in ray.nodes() if node["Alive"]]
    ray.shutdown()
    print(json.dumps(nodes))


if __name__ == "__main__":
    main()
