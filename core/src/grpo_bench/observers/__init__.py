"""Those who watch a run: the journal and everything derived from it.

``Observers`` is what the engine talks to. The journal (``events.jsonl``) is the only truth; ledger, summary and report
are pure views of its events, trajectories lie beside it.
"""

from .dispatch import Observers
from .journal import Journal, canonical, read_events
from .ledger import HopLedger, PhaseLedger, unaccounted
from .progress import Progress
from .report import write_report
from .summary import Tally, summarise
from .trajectories import read_trajectories

__all__ = [
    "HopLedger", "Journal", "Observers", "PhaseLedger", "Progress", "Tally", "canonical", "read_events",
    "read_trajectories", "summarise", "unaccounted", "write_report",
]
