import grpo_bench.observers


def test_the_public_names() -> None:
    assert grpo_bench.observers.__all__ == [
        "EVALUATION", "Comparison", "HopLedger", "Journal", "Observers", "Overview", "PhaseLedger", "Progress", "Tally",
        "journal_sha256", "metric_label", "pace_of", "placement_svg", "read_events", "read_run", "read_trajectories",
        "read_training", "summarise", "unaccounted", "write_report"]
