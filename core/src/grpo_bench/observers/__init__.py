"""Those who watch a run: the journal and everything derived from it.

``Observers`` is what the engine talks to. The journal (``events.jsonl``) is the only truth; ledger, summary and report
are pure views of its events, trajectories lie beside it.
"""

from ._schema import read_run
from ._text import metric_label
from .compare import Comparison
from .dispatch import Observers
from .journal import Journal, read_events
from .ledger import HopLedger, PhaseLedger, unaccounted
from .overview import Overview
from .progress import Progress
from .report import write_report
from .summary import Tally, summarise
from .trajectories import read_trajectories

__all__ = [
    "Comparison", "HopLedger", "Journal", "Observers", "Overview", "PhaseLedger", "Progress", "Tally", "metric_label",
    "read_events", "read_run", "read_trajectories", "summarise", "unaccounted", "write_report",
]
