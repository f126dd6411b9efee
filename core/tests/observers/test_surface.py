import grpo_bench.observers


def test_the_public_names() -> None:
    assert grpo_bench.observers.__all__ == [
        "HopLedger", "Journal", "Observers", "PhaseLedger", "Progress", "Tally", "canonical", "read_events",
        "read_trajectories", "summarise", "unaccounted", "write_report"]
