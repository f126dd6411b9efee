import grpo_bench.observers


def test_the_public_names() -> None:
    assert grpo_bench.observers.__all__ == [
        "Comparison", "HopLedger", "Journal", "Observers", "Overview", "PhaseLedger", "Progress", "Tally",
        "metric_label", "read_events", "read_run", "read_trajectories", "summarise", "unaccounted", "write_report"]
