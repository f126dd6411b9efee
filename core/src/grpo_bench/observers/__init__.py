"""Those who watch a run: the journal and everything derived from it.

``Observers`` is what the engine talks to. The journal (``events.jsonl``, and that of a deferred evaluation) is the only
truth; ledger, summary and report are pure views of its events, trajectories lie beside it.
"""

from ._placement import placement_svg
from ._schema import read_run, read_training
from ._text import metric_label
from .compare import Comparison
from .dispatch import Observers
from .journal import EVALUATION, Journal, journal_sha256, read_events
from .ledger import HopLedger, PhaseLedger, unaccounted
from .overview import Overview
from .pace import pace_of
from .progress import Progress
from .report import write_report
from .summary import Tally, summarise
from .trajectories import read_trajectories

__all__ = [
    "EVALUATION", "Comparison", "HopLedger", "Journal", "Observers", "Overview", "PhaseLedger", "Progress", "Tally",
    "journal_sha256", "metric_label", "pace_of", "placement_svg", "read_events", "read_run", "read_trajectories",
    "read_training", "summarise", "unaccounted", "write_report",
]
