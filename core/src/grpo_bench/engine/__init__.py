"""The schedule that runs the six steps: synchronous or asynchronous, on a real or a virtual clock."""

from .buffer import GroupBuffer, Ticket
from .clock import RealClock, VirtualClock, VirtualDeadlock, VirtualLoop, run_virtual
from .run import EXIT_CODES, Outcome, conduct, execute, make_folder

__all__ = [
    "EXIT_CODES", "GroupBuffer", "Outcome", "RealClock", "Ticket", "VirtualClock", "VirtualDeadlock", "VirtualLoop",
    "conduct", "execute", "make_folder", "run_virtual",
]
